"""The time, as an argument: nothing below the command line reads a clock of its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic and wall-clock time, in seconds."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.perf_counter()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to, for tests and simulations."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def wall(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`."""
        self._now_s += seconds
