"""The likeliest continuation of a matched suffix, scored by counts.

For every length of context that occurs in the automaton, follow the most frequent children (in
tree mode: grow the most probable nodes) while the estimated probability lasts and the budget of
that length allows. The draft whose probabilities sum to most is kept, of equals the one with the
longer context. Source: SuffixDecoding (arXiv:2411.04975) and its implementation ArcticInference.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from slipstream.speculation.drafters.suffix.automaton import SuffixAutomaton
from slipstream.speculation.drafters.suffix.transitions import ROOT_STATE


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a continuation ends.

    Attributes:
        max_nodes: Most tokens in all.
        max_len: Most tokens in one branch.
        min_prob: Least estimated probability of a token.
        vocab_size: No token id at or above it is proposed.
        end_tokens: Nothing follows one of these.
    """

    max_nodes: int
    max_len: int
    min_prob: float
    vocab_size: int = 2**31
    end_tokens: frozenset[int] = frozenset()


class Continuation(NamedTuple):
    """A proposed continuation (a named tuple: several are made for one that is kept).

    Attributes:
        tokens, parents, probs: As `DraftTree.tokens`, `parents` and `scores`.
        score: Sum of the probabilities.
        match_len: Tokens of context that led to it.
    """

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    score: float
    match_len: int


NO_CONTINUATION = Continuation([], [], [], 0.0, 0)


class _Room(NamedTuple):
    """What a context of `match_len` tokens may propose."""

    max_nodes: int
    max_len: int
    match_len: int


class Predictor:
    """Finds continuations by one set of matching rules.

    Args:
        max_depth: Depth of the automata; context and draft together are no longer.
        max_factor, max_offset: A context of n tokens may propose `max_factor * n + max_offset`.
        is_tree: Grow trees instead of chains.
    """

    def __init__(
        self, max_depth: int, max_factor: float, max_offset: float, *, is_tree: bool
    ) -> None:
        self._max_depth = max_depth
        self._budgets = [
            max(int(max_factor * length + max_offset + 1e-6), 0) for length in range(max_depth)
        ]
        self._is_tree = is_tree
        self._rooms = lru_cache(maxsize=4096)(self._find_rooms)
        # Every probability is rounded to float32 like the reference's, so that ties fall alike.
        self._float32 = array("f", [0.0])

    def predict(
        self, automaton: SuffixAutomaton, match: tuple[int, int], limits: Limits
    ) -> Continuation:
        """The best continuation of a match and of its shorter suffixes.

        Args:
            match: As from `SuffixAutomaton.match`.
        """
        counts, links, lengths = automaton.counts, automaton.links, automaton.lengths
        best, best_score = NO_CONTINUATION, 0.0
        state, longest = match
        while state != ROOT_STATE:
            shorter = links[state]
            shorter_len = lengths[shorter]
            child = automaton.best_child(state)
            if child is not None:
                # No draft scores more than its size times its first token's probability; the
                # margin covers float32.
                most_per_node = counts[child[1]] / counts[state] * (1.0 + 1e-6)
                for room in self._rooms(shorter_len, longest, limits.max_nodes, limits.max_len):
                    if room.max_nodes * most_per_node > best_score:
                        grow = self._grow_tree if self._is_tree else self._grow_chain
                        found = grow(automaton, state, room, limits)
                        if found.score > best_score:
                            best, best_score = found, found.score
            state, longest = shorter, shorter_len
        return best

    def _find_rooms(
        self, shorter_len: int, longest: int, max_nodes: int, max_len: int
    ) -> list[_Room]:
        """What contexts longer than `shorter_len` and up to `longest` may propose at most.

        A longer context may propose more tokens but leaves less depth, so there can be several
        that no other one covers; those with a longer context come first.
        """
        rooms: list[_Room] = []
        for length in range(longest, shorter_len, -1):
            num_nodes = min(self._budgets[length], max_nodes)
            depth = min(self._max_depth - length, max_len, num_nodes)
            if not self._is_tree:
                num_nodes = depth
            if all(num_nodes > room.max_nodes or depth > room.max_len for room in rooms):
                rooms.append(_Room(num_nodes, depth, length))
        return rooms

    def _grow_chain(
        self, automaton: SuffixAutomaton, state: int, room: _Room, limits: Limits
    ) -> Continuation:
        counts, float32 = automaton.counts, self._float32
        best_tokens, best_children = automaton.transitions.tokens, automaton.transitions.targets
        min_prob, vocab_size, end_tokens = limits.min_prob, limits.vocab_size, limits.end_tokens
        tokens: list[int] = []
        probs: list[float] = []
        prob, score = 1.0, 0.0
        count = counts[state]
        for _ in range(room.max_nodes):
            token = best_tokens[state]
            if token < 0:
                child = automaton.best_child(state)
                if child is None:
                    break
                token = child[0]
            state = best_children[state]
            if counts[state] != count:
                float32[0] = counts[state] / count
                float32[0] = prob * float32[0]
                prob = float32[0]
                count = counts[state]
            if prob < min_prob or token >= vocab_size:
                break
            tokens.append(token)
            probs.append(prob)
            float32[0] = score + prob
            score = float32[0]
            if token in end_tokens:
                break
        return Continuation(tokens, list(range(-1, len(tokens) - 1)), probs, score, room.match_len)

    def _grow_tree(
        self, automaton: SuffixAutomaton, state: int, room: _Room, limits: Limits
    ) -> Continuation:
        counts, float32 = automaton.counts, self._float32
        grown = Continuation([], [], [], 0.0, room.match_len)
        score = 0.0
        # Items: -probability, a number that makes the order of equals definite, state, token
        # (-1 for the start), parent node, depth.
        heap: list[tuple[float, int, int, int, int, int]] = [(-1.0, 0, state, -1, -1, 0)]
        num_pushed = 1
        while heap and len(grown.tokens) < room.max_nodes:
            negative_prob, _, state, token, node, depth = heapq.heappop(heap)
            if depth:
                grown.tokens.append(token)
                grown.parents.append(node)
                grown.probs.append(-negative_prob)
                float32[0] = score - negative_prob
                score = float32[0]
                node = len(grown.tokens) - 1
            if depth == room.max_len or token in limits.end_tokens:
                continue
            for next_token, child in automaton.transitions.items(state):
                prob = -negative_prob
                if counts[child] != counts[state]:
                    float32[0] = prob * counts[child]
                    float32[0] = float32[0] / counts[state]
                    prob = float32[0]
                if prob >= limits.min_prob and next_token < limits.vocab_size:
                    item = (-prob, num_pushed, child, next_token, node, depth + 1)
                    heapq.heappush(heap, item)
                    num_pushed += 1
        return grown._replace(score=score)
