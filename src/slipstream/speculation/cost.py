"""What a step costs, by the number of rows in the pass: measured at start, refined as it runs."""

from __future__ import annotations

import math
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

    SHAPE_GAIN = 0.05  # weight of a new comparison of two sizes
    MAX_RATIO = 1.5  # of a pass to what was expected, up or down, that is believed

    def __init__(self, profile: Mapping[int, float], decay: float = 0.9) -> None:
        if not profile:
            raise ValueError("a cost profile needs at least one measurement")
        self._rows = sorted(profile)
        self._seconds = [profile[rows] for rows in self._rows]
        self._level = 1.0
        self._level_gain = 1.0 - decay
        self._last: tuple[int, float] | None = None

    def seconds(self, rows: int) -> float:
        """Expected seconds of a pass over `rows` rows."""
        return self.curve(rows, 0)[0]

    def curve(self, rows: int, count: int) -> list[float]:
        """Expected seconds of passes over `rows` and each of the `count` next numbers of rows.

        No pass takes longer than a wider one does: what is slower was disturbed.
        """
        least = self._seconds[:]
        for index in range(len(least) - 2, -1, -1):
            least[index] = min(least[index], least[index + 1])
        found = []
        for num_rows in range(rows, rows + count + 1):
            low, high, share = self._around(num_rows)
            seconds = least[low] * (1.0 - share) + least[high] * share
            found.append(self._level * seconds * max(num_rows / self._rows[-1], 1.0))
        return found

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one pass.

        The level, which all sizes share, follows the load (context length, other work). How sizes
        compare is learned from passes that follow each other, whose load is the same: a profile's
        passes run colder than those of a stream of steps, and not all sizes by as much.
        """
        ratio = seconds / self.seconds(rows)
        surprise = math.log(min(max(ratio, 1.0 / self.MAX_RATIO), self.MAX_RATIO))
        if self._last is not None and self._last[0] != rows:
            last_rows, last_surprise = self._last
            difference = self.SHAPE_GAIN * (surprise - last_surprise) / 2.0
            self._reshape(rows, difference)
            self._reshape(last_rows, -difference)
        self._last = rows, surprise
        self._level *= math.exp(self._level_gain * surprise)

    def _reshape(self, rows: int, change: float) -> None:
        low, high, share = self._around(rows)
        self._seconds[low] *= math.exp((1.0 - share) * change)
        self._seconds[high] *= math.exp(share * change)

    def _around(self, rows: int) -> tuple[int, int, float]:
        """The measured sizes next to `rows`, and how far it is from the first to the second."""
        index = bisect_left(self._rows, rows)
        if index == len(self._rows):
            return index - 1, index - 1, 0.0
        if index == 0 or self._rows[index] == rows:
            return index, index, 0.0
        low, high = self._rows[index - 1], self._rows[index]
        return index - 1, index, (rows - low) / (high - low)
