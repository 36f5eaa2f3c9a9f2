"""Cutting a pass's rows into calls whose row counts are proved exact."""

from __future__ import annotations

from collections.abc import Sequence


class RowTiles:
    """Covers any number of rows by admitted counts.

    Args:
        sizes: Admitted row counts, at least one.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))

    def cover(self, num_rows: int) -> tuple[int, ...]:
        """Admitted counts, the largest first, whose sum is at least `num_rows` and close to it.

        As many of the largest as fit, then for the rest the smallest count that holds it, or two
        counts where that pads much less.
        """
        largest = self.sizes[-1]
        full, rest = divmod(num_rows, largest)
        cuts = [largest] * full
        while rest > 0:
            holding = next(size for size in self.sizes if size >= rest)
            within = [size for size in self.sizes if size < rest]
            if not within or holding - rest <= holding // 4:
                cuts.append(holding)
                break
            cuts.append(within[-1])
            rest -= within[-1]
        return tuple(cuts)
