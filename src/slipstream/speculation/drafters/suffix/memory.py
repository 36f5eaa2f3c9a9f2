"""Outputs of earlier and concurrent requests with one salt."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton

_MEMORY_BYTES = 2000  # an automaton without states and its arrays; per salt
_OUTPUT_BYTES = 400  # a sequence object with its array and dict entry


class SharedMemory:
    """Outputs of running and finished requests, oldest first.

    Args:
        max_depth: As in `SuffixAutomaton`.
        max_outputs: Most outputs kept, 0 keeps none, None is no limit. A new output evicts the
            oldest, even one that still grows; what it gets later is then not kept.
    """

    def __init__(self, max_depth: int, max_outputs: int | None) -> None:
        self.automaton = SuffixAutomaton(max_depth)
        self._max_outputs = max_outputs
        self._outputs: dict[Hashable, IndexedSequence] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Whose outputs are kept, oldest first."""
        return tuple(self._outputs)

    def start(self, key: Hashable) -> None:
        """Keep a new output; one with the same key is forgotten."""
        self.remove(key)
        if self._max_outputs == 0:
            return
        if len(self._outputs) == self._max_outputs:
            self.evict_oldest()
        self._outputs[key] = IndexedSequence()

    def extend(self, key: Hashable, tokens: Iterable[int]) -> None:
        """Let an output grow, unless it was evicted meanwhile."""
        output = self._outputs.get(key)
        if output is not None:
            self.automaton.extend(output, tokens)

    def remove(self, key: Hashable) -> None:
        """Forget an output; unknown keys are ignored."""
        output = self._outputs.pop(key, None)
        if output is not None:
            self.automaton.remove(output)

    def evict_oldest(self) -> None:
        """Forget the output that was started first; there must be one."""
        self.remove(next(iter(self._outputs)))

    def memory_bytes(self) -> int:
        """Estimate of the memory held, in O(1)."""
        outputs_bytes = len(self._outputs) * _OUTPUT_BYTES
        return _MEMORY_BYTES + outputs_bytes + self.automaton.memory_bytes()
