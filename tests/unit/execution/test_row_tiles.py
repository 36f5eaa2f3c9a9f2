"""Covering rows by counts that are proved exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.execution.row_tiles import RowTiles

POWERS = (1, 2, 4, 8, 16, 32, 64, 128)


@given(
    sizes=st.sets(st.sampled_from((*POWERS, 256, 512)), min_size=1),
    num_rows=st.integers(0, 1500),
)
def test_the_cover_holds_all_rows_and_uses_admitted_counts_only(
    sizes: set[int], num_rows: int
) -> None:
    cuts = RowTiles(tuple(sizes)).cover(num_rows)

    assert set(cuts) <= sizes
    assert num_rows <= sum(cuts) < num_rows + max(sizes)
    assert list(cuts) == sorted(cuts, reverse=True)


@pytest.mark.parametrize(
    ("num_rows", "cuts"),
    [
        (0, ()),
        (1, (1,)),
        (5, (8,)),
        (33, (64,)),
        (65, (64, 1)),
        (128, (128,)),
        (512, (128, 128, 128, 128)),
    ],
)
def test_few_rows_are_padded_and_many_are_split(num_rows: int, cuts: tuple[int, ...]) -> None:
    assert RowTiles(POWERS).cover(num_rows) == cuts
