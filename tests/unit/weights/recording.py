"""A progress that remembers."""

from __future__ import annotations

import threading


class RecordingProgress:
    """Remembers every stage: what it was, its size and the bytes reported."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.totals: list[int | None] = []
        self.bytes_done: list[int] = []
        self.num_ends = 0
        self._lock = threading.Lock()

    def begin(self, what: str, total_bytes: int | None) -> None:
        self.stages.append(what)
        self.totals.append(total_bytes)
        self.bytes_done.append(0)

    def advance(self, num_bytes: int) -> None:
        with self._lock:
            self.bytes_done[-1] += num_bytes

    def end(self) -> None:
        self.num_ends += 1
