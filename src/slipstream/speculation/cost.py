"""What a step costs, by the number of rows in the pass: measured at start, refined as it runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


class StepCost:
    """Seconds of a target pass by its rows, as a table that never decreases with rows.

    Sizes between two measured ones are interpolated, because the true curve is a staircase of the
    matrix library's own blocks. Other work on the machine only ever adds to a measurement, so of
    two sizes the wider one bounds the narrower one, and not the other way round.

    Args:
        profile: Rows -> seconds, measured once at start.
        decay: Weight that an old measurement keeps when a new one arrives.
    """

    def __init__(self, profile: Mapping[int, float], decay: float = 0.9) -> None:
        if not profile:
            raise ValueError("a cost profile needs at least one measurement")
        self._rows = sorted(profile)
        self._seconds = [profile[rows] for rows in self._rows]
        self._scale = 1.0
        self._decay = decay

    def seconds(self, rows: int) -> float:
        """Expected seconds of a pass over `rows` rows."""
        return self._scale * self._shape(rows)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one pass: the level follows the load (context length, other work).

        The shape stays as profiled, so that one slow pass does not make its size look bad.
        """
        ratio = seconds / self._shape(rows)
        bounded = min(max(ratio, 0.5 * self._scale), 2.0 * self._scale)
        self._scale = self._decay * self._scale + (1.0 - self._decay) * bounded

    def _shape(self, rows: int) -> float:
        index = bisect_left(self._rows, rows)
        if index == len(self._rows):
            return self._monotone(index - 1) * rows / self._rows[-1]
        if index == 0 or self._rows[index] == rows:
            return self._monotone(index)
        low, high = self._rows[index - 1], self._rows[index]
        share = (rows - low) / (high - low)
        return self._monotone(index - 1) * (1.0 - share) + self._monotone(index) * share

    def _monotone(self, index: int) -> float:
        """No pass takes longer than a wider one does: what is slower was disturbed."""
        return min(self._seconds[index:])
