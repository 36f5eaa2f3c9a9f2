"""Stop strings in a growing text, wherever the pieces are cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

from slipstream.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that is now certain to belong to the output, and the stop string that ended it."""

    text: str
    matched: str | None = None


@dataclass(slots=True)
class _State:
    """One prefix of some stop string: how it goes on, and what it ends with.

    Attributes:
        depth: Its length in characters.
        fallback: The longest proper suffix that is a prefix of some stop string too.
        matched: The longest stop string that it ends with.
    """

    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None
    matched: str | None = None


class StopStrings:
    """Watches one output for its stop strings (an Aho-Corasick automaton, linear in the text).

    The match that is completed first ends the output; of several completed by the same character
    the longest counts, which is the one that starts first. Held back is the longest end of the
    text that may still become a stop string, and nothing else; with `include_stop` that is nothing.

    Args:
        stops: The strings; none means that everything passes through.
        include_stop: Keep the matched string in the text.

    Raises:
        InvalidRequestError: A stop string is empty.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if any(not stop for stop in stops):
            raise InvalidRequestError("stop holds an empty string", param="stop")
        self._root = _automaton(stops)
        self._state = self._root
        self._include_stop = include_stop
        self._held = ""
        self._matched: str | None = None

    def restarted(self) -> StopStrings:
        """The same strings, watched in another output; what is known of them is shared."""
        other = copy(self)
        other._state, other._held, other._matched = self._root, "", None
        return other

    def push(self, text: str) -> StopResult:
        """Take the next piece of text; after a match everything is swallowed."""
        if self._matched is not None:
            return StopResult("", self._matched)
        if not self._root.next:
            return StopResult(text)
        state = self._state
        for index, letter in enumerate(text):
            state = _step(self._root, state, letter)
            if state.matched is not None:
                return self._end(self._held + text[: index + 1], state.matched)
        self._state = state
        return StopResult(self._release(self._held + text, state.depth))

    def flush(self) -> str:
        """The output ended otherwise: what was held back is text after all."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _release(self, pending: str, held_len: int) -> str:
        if self._include_stop:
            return pending
        cut = len(pending) - held_len
        self._held = pending[cut:]
        return pending[:cut]

    def _end(self, pending: str, matched: str) -> StopResult:
        self._matched, self._held = matched, ""
        kept = pending if self._include_stop else pending[: len(pending) - len(matched)]
        return StopResult(kept, matched)


def _automaton(stops: Sequence[str]) -> _State:
    root = _State(depth=0)
    for stop in stops:
        state = root
        for letter in stop:
            state = state.next.setdefault(letter, _State(depth=state.depth + 1))
        state.matched = stop
    waiting = deque(root.next.values())
    for state in waiting:
        state.fallback = root
    while waiting:
        state = waiting.popleft()
        for letter, longer in state.next.items():
            assert state.fallback is not None
            longer.fallback = _step(root, state.fallback, letter)
            longer.matched = longer.matched or longer.fallback.matched
            waiting.append(longer)
    return root


def _step(root: _State, state: _State, letter: str) -> _State:
    """The longest prefix of a stop string that `state` followed by `letter` ends with."""
    while letter not in state.next:
        if state.fallback is None:
            return root
        state = state.fallback
    return state.next[letter]
