"""Counts every substring up to a length, over sequences that grow and go.

A suffix automaton cut off at `max_depth` tokens. A *state* stands for all substrings that end at
the same places; the longest of them has `length` tokens, and the state's `link` holds the next
shorter suffixes. Reading a token moves along a *transition*. Beside the textbook structure (Blumer
et al. 1985) each state carries

- the count of its occurrences, those at the very end of a sequence included;
- its most frequent child (of equals, the one seen last), kept up to date, so that following the
  likeliest path costs O(1) a token.

A position has at most `max_depth` suffix states, so appending a token or removing it with its
sequence costs O(max_depth) at worst, and a few states on ordinary text. Removing a sequence frees
what occurred only there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.speculation.drafters.suffix.transitions import NONE, ROOT_STATE, Transitions

# Bytes: three array cells with the spare room that they keep when they grow.
_STATE_BYTES = 13


@dataclass(slots=True)
class IndexedSequence:
    """One sequence inside an automaton; only the automaton changes it.

    Attributes:
        tokens: What was appended.
        state, suffix_len: The state of its last `suffix_len` tokens (at most max_depth - 1).
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    state: int = ROOT_STATE
    suffix_len: int = 0


class SuffixAutomaton:
    """Substring counts over a set of sequences.

    Args:
        max_depth: Longest substring that is counted, in tokens; at least 2.

    Attributes:
        lengths, links, counts: [states] as described above; no counts are kept for the root.
        transitions: With each state's most frequent child as its favourite. All four are to be
            read only; where no favourite is known, `best_child` finds it.
    """

    def __init__(self, max_depth: int) -> None:
        if max_depth < 2:
            raise ValueError(f"max_depth must be at least 2 tokens, got {max_depth}")
        self.max_depth = max_depth
        self.lengths = array("i", [0])
        self.links = array("i", [NONE])
        self.counts = array("i", [0])
        self.transitions = Transitions()
        self._free: list[int] = []
        self._num_tokens = 0

    @property
    def num_states(self) -> int:
        """Live states, the root included."""
        return len(self.lengths) - len(self._free)

    def memory_bytes(self) -> int:
        """Estimate of the memory held, in O(1)."""
        return (
            len(self.lengths) * _STATE_BYTES
            + self._num_tokens * self.lengths.itemsize
            + self.transitions.memory_bytes()
        )

    def append(self, sequence: IndexedSequence, token: int) -> None:
        """Let `sequence` grow by one token."""
        links, counts, find = self.links, self.counts, self.transitions.find
        best_tokens, best_children = self.transitions.tokens, self.transitions.targets
        start = self.holder(sequence.state, sequence.suffix_len)
        new = self._extend(start, sequence.suffix_len + 1, token)
        state, counted = start, NONE
        while state != ROOT_STATE:
            best = best_tokens[state]
            child = best_children[state] if best == token else find(state, token)
            if child != counted:
                counts[child] += 1
                counted = child
            if best not in (token, NONE) and counts[child] >= counts[best_children[state]]:
                best_tokens[state] = token
                best_children[state] = child
            state = links[state]
        child = find(ROOT_STATE, token)
        if child != counted:
            counts[child] += 1
        sequence.tokens.append(token)
        sequence.suffix_len = min(sequence.suffix_len + 1, self.max_depth - 1)
        sequence.state = self.holder(new, sequence.suffix_len)
        self._num_tokens += 1

    def extend(self, sequence: IndexedSequence, tokens: Iterable[int]) -> None:
        """Let `sequence` grow by several tokens."""
        for token in tokens:
            self.append(sequence, token)

    def remove(self, sequence: IndexedSequence) -> None:
        """Forget `sequence`; it must not be used afterwards."""
        counts, links, transitions = self.counts, self.links, self.transitions
        dead: list[int] = []
        start, suffix_len = ROOT_STATE, 0
        for token in sequence.tokens:
            new = transitions.find(start, token)
            state, counted = start, NONE
            while state != NONE:
                child = transitions.find(state, token)
                if child != counted:
                    counts[child] -= 1
                    counted = child
                    if not counts[child]:
                        dead.append(child)
                if counts[child]:
                    transitions.unfavour(state, token)
                else:
                    transitions.drop(state, token)
                state = links[state]
            suffix_len = min(suffix_len + 1, self.max_depth - 1)
            start = self.holder(new, suffix_len)
        for state in dead:
            transitions.clear(state)
        self._free.extend(dead)
        self._num_tokens -= len(sequence.tokens)

    def match(self, context: Sequence[int]) -> tuple[int, int]:
        """The longest proper suffix of `context` that occurs here, as (state, its length).

        At most max_depth - 1 tokens, so that there is room for a child. O(max_depth).
        """
        links, lengths, transitions = self.links, self.lengths, self.transitions
        best_tokens, best_children = transitions.tokens, transitions.targets
        state, suffix_len = ROOT_STATE, 0
        for token in context[-self.max_depth :]:
            while state != ROOT_STATE:
                if best_tokens[state] == token:
                    state = best_children[state]
                    break
                branches = transitions.branches[state]
                if branches is not None and token in branches:
                    state = branches[token]
                    break
                state = links[state]
                suffix_len = lengths[state]
            else:
                state = transitions.root.get(token, ROOT_STATE)
            suffix_len = suffix_len + 1 if state != ROOT_STATE else 0
        suffix_len = min(suffix_len, len(context) - 1, self.max_depth - 1)
        return self.holder(state, suffix_len), suffix_len

    def holder(self, state: int, suffix_len: int) -> int:
        """The state of the suffix with `suffix_len` tokens of a string in `state`."""
        links, lengths = self.links, self.lengths
        while state != ROOT_STATE and lengths[links[state]] >= suffix_len:
            state = links[state]
        return state

    def best_child(self, state: int) -> tuple[int, int] | None:
        """The most frequent next token and the state it leads to; None if nothing follows."""
        transitions, counts = self.transitions, self.counts
        if transitions.tokens[state] != NONE:
            return transitions.tokens[state], transitions.targets[state]
        items = transitions.items(state)
        if not items:
            return None
        token, child = max(items, key=lambda item: (counts[item[1]], -item[0]))
        transitions.favour(state, token, child)
        return token, child

    def _extend(self, start: int, target_len: int, token: int) -> int:
        """The state of the string that ends here with `target_len` tokens, made if need be."""
        links, lengths, transitions = self.links, self.lengths, self.transitions
        found = transitions.find(start, token)
        if found != NONE:
            if lengths[found] == target_len:
                return found
            return self._split(start, token, found, target_len)
        new = self._new_state(target_len)
        state = start
        while found == NONE:
            transitions.set(state, token, new)
            state = links[state]
            if state == NONE:
                links[new] = ROOT_STATE
                return new
            found = transitions.find(state, token)
        if lengths[found] != lengths[state] + 1:
            found = self._split(state, token, found, lengths[state] + 1)
        links[new] = found
        return new

    def _split(self, state: int, token: int, whole: int, short_len: int) -> int:
        """Give the strings of `whole` up to `short_len` tokens a state of their own."""
        links, transitions = self.links, self.transitions
        short = self._new_state(short_len)
        links[short] = links[whole]
        links[whole] = short
        self.counts[short] = self.counts[whole]
        transitions.copy(whole, short)
        if short_len == self.max_depth - 1:
            # What stays in `whole` has max_depth tokens and needs no future; a kept transition
            # would outlive the state it leads to.
            transitions.clear(whole)
        while state != NONE and transitions.find(state, token) == whole:
            transitions.set(state, token, short)
            state = links[state]
        return short

    def _new_state(self, length: int) -> int:
        if self._free:
            state = self._free.pop()
            self.lengths[state] = length
            self.counts[state] = 0
            return state
        self.lengths.append(length)
        self.links.append(NONE)
        self.counts.append(0)
        self.transitions.add_state()
        return len(self.lengths) - 1
