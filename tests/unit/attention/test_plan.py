"""Cutting branches into tiles and key blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.attention.backend import IntArray
from slipstream.attention.plan import KEY_BLOCK_LEN, AttentionPlan, TilingRules, build_plan

ROOMY = TilingRules((1, 2, 4, 8, 16, 32, 64, 128), item_bytes=1, lane_bytes=1, group_bytes=10**9)


@dataclass(frozen=True)
class Span:
    """The shape of a branch."""

    rows: IntArray
    positions: IntArray
    slots: IntArray


def spans_of(parts: list[tuple[int, int]], seed: int = 0) -> tuple[list[Span], int]:
    """Branches of (first position, number of rows), their rows and slots scattered."""
    rng = np.random.default_rng(seed)
    num_rows = sum(count for _, count in parts)
    rows = rng.permutation(num_rows + 2)
    spans, taken = [], 0
    for start, count in parts:
        slots = rng.integers(1, 10**6, start + count)
        mine = np.sort(rows[taken : taken + count])
        spans.append(Span(mine, np.arange(start, start + count), slots))
        taken += count
    return spans, num_rows + 2


def seen_slots(plan: AttentionPlan, row: int) -> list[int]:
    """Slots whose keys the row reads, in the order of their ranks."""
    lane = int(plan.lane_of_row[row])
    for group in plan.groups:
        if lane < group.rows.size:
            break
        lane -= group.rows.size
    tile, lane_in_tile = divmod(lane, group.tile_rows)
    assert group.rows[tile, lane_in_tile] == row
    slots: list[int] = []
    for item in np.flatnonzero(group.item_tile == tile)[::-1]:
        is_masked = item < len(group.visible)
        visible = group.visible[item, lane_in_tile] if is_masked else slice(None)
        slots += group.item_slots[item][visible].tolist()
    return slots


PARTS = st.lists(st.tuples(st.integers(0, 600), st.integers(1, 150)), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40)
@given(
    parts=PARTS,
    window=st.sampled_from([None, 1, 17, 128, 300]),
    tile_sizes=st.sampled_from([(1, 2, 4, 8, 16), (4, 16, 64), (2, 128)]),
    group_bytes=st.sampled_from([1, 500, 10**9]),
)
def test_every_row_sees_exactly_its_own_past_in_order(
    parts: list[tuple[int, int]],
    window: int | None,
    tile_sizes: tuple[int, ...],
    group_bytes: int,
) -> None:
    spans, num_rows = spans_of(parts)

    plan = build_plan(spans, num_rows, window, TilingRules(tile_sizes, 1, 1, group_bytes))

    for span in spans:
        for row, position in list(zip(span.rows, span.positions, strict=True))[::17]:
            first = 0 if window is None else max(0, position - window + 1)
            assert seen_slots(plan, int(row)) == span.slots[first : position + 1].tolist()


@settings(deadline=None, max_examples=30)
@given(parts=PARTS, group_bytes=st.sampled_from([1, 500, 10**9]))
def test_items_of_a_rank_belong_to_the_first_tiles_in_order(
    parts: list[tuple[int, int]], group_bytes: int
) -> None:
    spans, num_rows = spans_of(parts)

    plan = build_plan(spans, num_rows, None, TilingRules((8, 64), 1, 1, group_bytes))

    for group in plan.groups:
        expected = [tile for count in group.rank_counts for tile in range(count)]
        assert group.item_tile.tolist() == expected


def test_decoding_rows_and_prompt_chunks_are_tiled_apart() -> None:
    spans, num_rows = spans_of([(500, 1), (300, 1), (0, 100)])

    plan = build_plan(spans, num_rows, None, ROOMY)

    assert [group.tile_rows for group in plan.groups] == [1, 128]


def test_blocks_outside_a_window_are_not_read() -> None:
    spans, num_rows = spans_of([(1030, 1)])

    plan = build_plan(spans, num_rows, 100, ROOMY)

    assert plan.groups[0].num_items == 2
    assert plan.groups[0].item_slots.size == 2 * KEY_BLOCK_LEN


def test_a_small_working_memory_makes_more_groups() -> None:
    spans, num_rows = spans_of([(500, 1)] * 8)
    rules = TilingRules((1,), item_bytes=10, lane_bytes=0, group_bytes=80)

    plan = build_plan(spans, num_rows, None, rules)

    assert [group.num_items for group in plan.groups] == [8, 8, 8, 8]
