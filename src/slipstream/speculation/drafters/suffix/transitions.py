"""The transitions of an automaton's states, packed: most states have one.

A state with one transition keeps it in two array cells; only a branching state owns a dict. For a
branching state the two cells hold its favourite, the transition that is most worth following.
"""

from __future__ import annotations

from array import array

ROOT_STATE = 0
NONE = -1

# Bytes, measured with tracemalloc on CPython 3.11: two cells and a list slot with the spare room
# that both keep when they grow; a small dict; an entry with its two int objects.
_STATE_BYTES = 18
_DICT_BYTES = 160
_ENTRY_BYTES = 80


class Transitions:
    """State and token -> state.

    Attributes:
        tokens, targets: [states] the only transition, or the favourite of several; token -1 where
            there is none or the favourite is not known. Not kept for the root.
    """

    def __init__(self) -> None:
        self.tokens = array("i", [NONE])
        self.targets = array("i", [NONE])
        self.branches: list[dict[int, int] | None] = [None]
        self.root: dict[int, int] = {}
        self._num_dicts = 0
        self._num_entries = 0

    def memory_bytes(self) -> int:
        """Estimate of the memory held, in O(1)."""
        return (
            len(self.tokens) * _STATE_BYTES
            + self._num_dicts * _DICT_BYTES
            + (self._num_entries + len(self.root)) * _ENTRY_BYTES
        )

    def add_state(self) -> None:
        """Make room for one more state."""
        self.tokens.append(NONE)
        self.targets.append(NONE)
        self.branches.append(None)

    def find(self, state: int, token: int) -> int:
        """Where `token` leads from `state`; -1 if nowhere."""
        if state == ROOT_STATE:
            return self.root.get(token, NONE)
        branches = self.branches[state]
        if branches is not None:
            return branches.get(token, NONE)
        return self.targets[state] if self.tokens[state] == token else NONE

    def items(self, state: int) -> list[tuple[int, int]]:
        """All transitions of a state, as (token, target); not for the root."""
        branches = self.branches[state]
        if branches is not None:
            return list(branches.items())
        token = self.tokens[state]
        return [] if token == NONE else [(token, self.targets[state])]

    def favour(self, state: int, token: int, target: int) -> None:
        """Make one of a branching state's transitions its favourite."""
        self.tokens[state] = token
        self.targets[state] = target

    def unfavour(self, state: int, token: int) -> None:
        """Note that this transition of a branching state may be its favourite no more."""
        if self.tokens[state] == token and self.branches[state] is not None:
            self.tokens[state] = NONE

    def set(self, state: int, token: int, target: int) -> None:
        """Add a transition or lead it elsewhere."""
        if state == ROOT_STATE:
            self.root[token] = target
            return
        branches = self.branches[state]
        only = self.tokens[state]
        if branches is not None:
            self._num_entries += token not in branches
            branches[token] = target
        elif only not in (token, NONE):
            self.branches[state] = {only: self.targets[state], token: target}
            self._num_dicts += 1
            self._num_entries += 2
            return
        if branches is None or only == token:
            self.favour(state, token, target)

    def drop(self, state: int, token: int) -> None:
        """Remove a transition that exists."""
        if state == ROOT_STATE:
            del self.root[token]
            return
        branches = self.branches[state]
        if branches is None:
            self.tokens[state] = NONE
            return
        del branches[token]
        self._num_entries -= 1
        if len(branches) == 1:
            ((last_token, target),) = branches.items()
            self.clear(state)
            self.favour(state, last_token, target)
        else:
            self.unfavour(state, token)

    def clear(self, state: int) -> None:
        """Remove all transitions of a state."""
        branches = self.branches[state]
        if branches is not None:
            self._num_dicts -= 1
            self._num_entries -= len(branches)
            self.branches[state] = None
        self.tokens[state] = NONE

    def copy(self, source: int, target: int) -> None:
        """Give `target`, which has none, the transitions of `source`."""
        self.favour(target, self.tokens[source], self.targets[source])
        branches = self.branches[source]
        if branches is not None:
            self.branches[target] = dict(branches)
            self._num_dicts += 1
            self._num_entries += len(branches)
