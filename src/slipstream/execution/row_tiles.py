"""Cutting a pass's rows into calls whose row counts are proved exact."""

from __future__ import annotations

from collections.abc import Sequence

_CALL_COST = 32  # rows whose arithmetic takes as long as reading the weights once does


class RowTiles:
    """Covers any number of rows by admitted counts.

    Args:
        sizes: Admitted row counts, at least one.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))

    def __str__(self) -> str:
        return " ".join(map(str, self.sizes))

    def cover(self, num_rows: int) -> tuple[int, ...]:
        """Admitted counts, descending, whose sum is at least `num_rows`.

        As many of the largest as fit; the rest is padded to the smallest count that holds it, or
        split where a second reading of the weights costs less than the padding.
        """
        largest = self.sizes[-1]
        full, rest = divmod(num_rows, largest)
        return (largest,) * full + self._cover_rest(rest)

    def _cover_rest(self, num_rows: int) -> tuple[int, ...]:
        if num_rows == 0:
            return ()
        padded = (next(size for size in self.sizes if size >= num_rows),)
        smaller = [size for size in self.sizes if size < num_rows]
        if not smaller:
            return padded
        split = (smaller[-1], *self._cover_rest(num_rows - smaller[-1]))
        return min(padded, split, key=_cost)


class AnyRows:
    """Where every row count is exact."""

    def __str__(self) -> str:
        return "any"

    def cover(self, num_rows: int) -> tuple[int, ...]:
        """All rows in one call."""
        return (num_rows,) if num_rows else ()


def _cost(cuts: tuple[int, ...]) -> int:
    return sum(cuts) + _CALL_COST * len(cuts)
