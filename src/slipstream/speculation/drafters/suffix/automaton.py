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
what occurred only there. A state with one transition keeps it in two array cells; only a branching
state owns a dict.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ROOT_STATE = 0
_NONE = -1

# Bytes, measured with tracemalloc on CPython 3.11: five array cells and a list slot, with the
# spare room that both keep when they grow; a small dict; an entry with its two int objects.
_STATE_BYTES = 31
_DICT_BYTES = 160
_ENTRY_BYTES = 80


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
        lengths, links, counts: [states] as described above; only this class changes them.
        best_tokens, best_children: [states] the most frequent next token and the state it leads
            to, -1 where `best_child` must be asked. Neither they nor the count are kept for the
            root.
    """

    def __init__(self, max_depth: int) -> None:
        if max_depth < 2:
            raise ValueError(f"max_depth must be at least 2 tokens, got {max_depth}")
        self.max_depth = max_depth
        self.lengths = array("i", [0])
        self.links = array("i", [_NONE])
        self.counts = array("i", [0])
        # Without a dict: the only transition. With one: its most frequent entry, or _NONE (stale).
        self.best_tokens = array("i", [_NONE])
        self.best_children = array("i", [_NONE])
        self._branches: list[dict[int, int] | None] = [None]
        self._root: dict[int, int] = {}
        self._free: list[int] = []
        self._num_dicts = 0
        self._num_entries = 0
        self._num_tokens = 0

    @property
    def num_states(self) -> int:
        """Live states, the root included."""
        return len(self.lengths) - len(self._free)

    def memory_bytes(self) -> int:
        """Estimate of the memory held, in O(1)."""
        return (
            len(self.lengths) * _STATE_BYTES
            + self._num_dicts * _DICT_BYTES
            + (self._num_entries + len(self._root)) * _ENTRY_BYTES
            + self._num_tokens * self.lengths.itemsize
        )

    def append(self, sequence: IndexedSequence, token: int) -> None:
        """Let `sequence` grow by one token."""
        link, count = self.links, self.counts
        best_token, best_child = self.best_tokens, self.best_children
        start = self.holder(sequence.state, sequence.suffix_len)
        new = self._extend(start, sequence.suffix_len + 1, token)
        state, counted = start, _NONE
        while state != ROOT_STATE:
            best = best_token[state]
            child = best_child[state] if best == token else self._child(state, token)
            if child != counted:
                count[child] += 1
                counted = child
            if best not in (token, _NONE) and count[child] >= count[best_child[state]]:
                best_token[state] = token
                best_child[state] = child
            state = link[state]
        child = self._root[token]
        if child != counted:
            count[child] += 1
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
        count, link = self.counts, self.links
        dead: list[int] = []
        start, suffix_len = ROOT_STATE, 0
        for token in sequence.tokens:
            new = self._child(start, token)
            state, counted = start, _NONE
            while state != _NONE:
                child = self._child(state, token)
                if child != counted:
                    count[child] -= 1
                    counted = child
                    if not count[child]:
                        dead.append(child)
                if not count[child]:
                    self._drop_transition(state, token)
                elif self.best_tokens[state] == token and self._branches[state] is not None:
                    self.best_tokens[state] = _NONE
                state = link[state]
            suffix_len = min(suffix_len + 1, self.max_depth - 1)
            start = self.holder(new, suffix_len)
        for state in dead:
            self._drop_all_transitions(state)
        self._free.extend(dead)
        self._num_tokens -= len(sequence.tokens)

    def match(self, context: Sequence[int]) -> tuple[int, int]:
        """The longest proper suffix of `context` that occurs here, as (state, its length).

        At most max_depth - 1 tokens, so that there is room for a child. O(max_depth).
        """
        root, branches_of = self._root, self._branches
        links, lengths = self.links, self.lengths
        best_tokens, best_children = self.best_tokens, self.best_children
        state, suffix_len = ROOT_STATE, 0
        for token in context[-self.max_depth :]:
            while state != ROOT_STATE:
                if best_tokens[state] == token:
                    state = best_children[state]
                    break
                branches = branches_of[state]
                if branches is not None and token in branches:
                    state = branches[token]
                    break
                state = links[state]
                suffix_len = lengths[state]
            else:
                state = root.get(token, ROOT_STATE)
            suffix_len = suffix_len + 1 if state != ROOT_STATE else 0
        suffix_len = min(suffix_len, len(context) - 1, self.max_depth - 1)
        return self.holder(state, suffix_len), suffix_len

    def holder(self, state: int, suffix_len: int) -> int:
        """The state of the suffix with `suffix_len` tokens of a string in `state`."""
        link, length = self.links, self.lengths
        while state != ROOT_STATE and length[link[state]] >= suffix_len:
            state = link[state]
        return state

    def best_child(self, state: int) -> tuple[int, int] | None:
        """The most frequent next token and the state it leads to; None if nothing follows."""
        token = self.best_tokens[state]
        if token != _NONE:
            return token, self.best_children[state]
        branches = self._branches[state]
        if branches is None:
            return None
        count = self.counts
        token = max(branches, key=lambda token: (count[branches[token]], -token))
        self.best_tokens[state] = token
        self.best_children[state] = branches[token]
        return token, branches[token]

    def children(self, state: int) -> list[tuple[int, int]]:
        """All next tokens with the states they lead to; not for the root."""
        branches = self._branches[state]
        if branches is not None:
            return list(branches.items())
        token = self.best_tokens[state]
        return [] if token == _NONE else [(token, self.best_children[state])]

    def _child(self, state: int, token: int) -> int:
        if state == ROOT_STATE:
            return self._root.get(token, _NONE)
        branches = self._branches[state]
        if branches is not None:
            return branches.get(token, _NONE)
        return self.best_children[state] if self.best_tokens[state] == token else _NONE

    def _extend(self, start: int, target_len: int, token: int) -> int:
        """The state of the string that ends here with `target_len` tokens, made if need be."""
        link, length = self.links, self.lengths
        found = self._child(start, token)
        if found != _NONE:
            if length[found] == target_len:
                return found
            return self._split(start, token, found, target_len)
        new = self._new_state(target_len)
        state = start
        while found == _NONE:
            self._set_transition(state, token, new)
            state = link[state]
            if state == _NONE:
                link[new] = ROOT_STATE
                return new
            found = self._child(state, token)
        if length[found] != length[state] + 1:
            found = self._split(state, token, found, length[state] + 1)
        link[new] = found
        return new

    def _split(self, state: int, token: int, whole: int, short_len: int) -> int:
        """Give the strings of `whole` up to `short_len` tokens a state of their own."""
        link = self.links
        short = self._new_state(short_len)
        link[short] = link[whole]
        link[whole] = short
        self.counts[short] = self.counts[whole]
        self.best_tokens[short] = self.best_tokens[whole]
        self.best_children[short] = self.best_children[whole]
        branches = self._branches[whole]
        if branches is not None:
            self._branches[short] = dict(branches)
            self._num_dicts += 1
            self._num_entries += len(branches)
        if short_len == self.max_depth - 1:
            # What stays in `whole` has max_depth tokens and needs no future; a kept transition
            # would outlive the state it leads to.
            self._drop_all_transitions(whole)
        while state != _NONE and self._child(state, token) == whole:
            self._set_transition(state, token, short)
            state = link[state]
        return short

    def _new_state(self, length: int) -> int:
        if self._free:
            state = self._free.pop()
            self.lengths[state] = length
            self.counts[state] = 0
            return state
        self.lengths.append(length)
        self.links.append(_NONE)
        self.counts.append(0)
        self.best_tokens.append(_NONE)
        self.best_children.append(_NONE)
        self._branches.append(None)
        return len(self.lengths) - 1

    def _set_transition(self, state: int, token: int, child: int) -> None:
        if state == ROOT_STATE:
            self._root[token] = child
            return
        branches = self._branches[state]
        best = self.best_tokens[state]
        if branches is not None:
            self._num_entries += token not in branches
            branches[token] = child
        elif best not in (token, _NONE):
            self._branches[state] = {best: self.best_children[state], token: child}
            self._num_dicts += 1
            self._num_entries += 2
            return
        if branches is None or best == token:
            self.best_tokens[state] = token
            self.best_children[state] = child

    def _drop_transition(self, state: int, token: int) -> None:
        if state == ROOT_STATE:
            del self._root[token]
            return
        branches = self._branches[state]
        if branches is None:
            self.best_tokens[state] = _NONE
            return
        del branches[token]
        self._num_entries -= 1
        if len(branches) == 1:
            (last,) = branches.items()
            self._drop_all_transitions(state)
            self.best_tokens[state], self.best_children[state] = last
        elif self.best_tokens[state] == token:
            self.best_tokens[state] = _NONE

    def _drop_all_transitions(self, state: int) -> None:
        branches = self._branches[state]
        if branches is not None:
            self._num_dicts -= 1
            self._num_entries -= len(branches)
            self._branches[state] = None
        self.best_tokens[state] = _NONE
