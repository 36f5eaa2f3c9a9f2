"""From branches to work items: (tile of query rows, block of key positions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slipstream.attention.backend import IntArray, Rows

KEY_BLOCK_LEN = 128


@dataclass(frozen=True, slots=True)
class TilingRules:
    """How rows may be cut into tiles and groups. No rule changes a bit of a result.

    Attributes:
        tile_sizes: Row counts that a tile may have, ascending.
        item_bytes: Working memory of an item, whatever its rows: keys and values.
        lane_bytes: Working memory of an item for each of its rows: scores.
        group_bytes: Working memory that a group may need, unless one tile alone needs more.
    """

    tile_sizes: tuple[int, ...]
    item_bytes: int
    lane_bytes: int
    group_bytes: int


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles of one size that are computed together.

    A tile holds `tile_rows` rows of one branch; a last tile that is not full repeats its last
    row. A block holds the key positions [128 b, 128 b + 128). Items are the pairs of a tile and a
    block that it can see. An item's rank counts the tile's blocks from the newest (0) back.
    Tiles with most items come first and items go by rank, then by tile: the items of rank r
    belong to the first `rank_counts[r]` tiles, in order.

    Attributes:
        tile_rows: Rows of a tile.
        rows: [tiles, tile_rows] flat row of each lane.
        item_tile: [items] tile of each item.
        item_slots: [items, 128] KV slots of the item's block; 0 past the branch's end.
        visible: [masked items, tile_rows, 128] whether the lane sees the position, for the first
            items; those that follow see all of their block.
        tile_items: [tiles, ranks] items of each tile; its first one repeated where it has fewer.
        rank_counts: Items of each rank.
    """

    tile_rows: int
    rows: IntArray
    item_tile: IntArray
    item_slots: IntArray
    visible: npt.NDArray[np.bool_]
    tile_items: IntArray
    rank_counts: tuple[int, ...]

    @property
    def num_tiles(self) -> int:
        """Tiles of the group."""
        return len(self.rows)

    @property
    def num_items(self) -> int:
        """Items of the group."""
        return len(self.item_tile)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All tile groups of one pass and one window.

    Attributes:
        groups: Computed one after the other.
        lane_of_row: [rows] index of each flat row among all groups' lanes, in order of groups;
            0 for rows in no branch.
    """

    groups: tuple[TileGroup, ...]
    lane_of_row: IntArray


def build_plan(
    branches: Sequence[Rows], num_rows: int, window: int | None, rules: TilingRules
) -> AttentionPlan:
    """Cut branches into tiles and pair them with the key blocks they can see.

    Args:
        num_rows: Flat rows of the pass.
        window: A key is visible when query position - key position < window; None = all.
    """
    groups: list[TileGroup] = []
    lane_of_row = np.zeros(num_rows, np.int64)
    num_lanes = 0
    for members, tile_rows in _classes(branches, rules.tile_sizes):
        for group in _build_groups(members, tile_rows, window, rules):
            lanes = np.arange(group.rows.size)
            # Lanes that repeat a row come after it: written backwards, the first one stays.
            lane_of_row[group.rows.ravel()[::-1]] = num_lanes + lanes[::-1]
            num_lanes += group.rows.size
            groups.append(group)
    return AttentionPlan(tuple(groups), lane_of_row)


def _classes(branches: Sequence[Rows], tile_sizes: Sequence[int]) -> list[tuple[list[Rows], int]]:
    """Branches with few rows (decoding, drafts) and with many (prompt chunks), with tile sizes."""
    few = [branch for branch in branches if 0 < len(branch.rows) <= 32]
    many = [branch for branch in branches if len(branch.rows) > 32]
    classes = []
    for members in (few, many):
        if members:
            longest = max(len(branch.rows) for branch in members)
            fitting = [size for size in tile_sizes if size >= longest]
            classes.append((members, fitting[0] if fitting else tile_sizes[-1]))
    return classes


def _build_groups(
    branches: Sequence[Rows], tile_rows: int, window: int | None, rules: TilingRules
) -> list[TileGroup]:
    lens = np.array([len(branch.rows) for branch in branches])
    rows = np.concatenate([branch.rows for branch in branches])
    positions = np.concatenate([branch.positions for branch in branches])
    tile_branch, tile_rank = _repeat_with_rank(-(-lens // tile_rows))
    lanes = tile_rank[:, None] * tile_rows + np.arange(tile_rows)
    lanes = np.minimum(lanes, lens[tile_branch][:, None] - 1) + _starts(lens)[tile_branch][:, None]
    tile_positions = positions[lanes]
    first_seen = tile_positions[:, 0] - (window - 1) if window else np.zeros(len(lanes), np.int64)
    first_blocks = np.maximum(first_seen, 0) // KEY_BLOCK_LEN
    newest_blocks = tile_positions[:, -1] // KEY_BLOCK_LEN
    num_blocks = newest_blocks - first_blocks + 1

    slots = np.concatenate([branch.slots for branch in branches])
    slot_lens = np.array([len(branch.slots) for branch in branches])
    slot_starts = _starts(slot_lens)
    order = np.argsort(-num_blocks, kind="stable")
    max_items = rules.group_bytes // (rules.item_bytes + tile_rows * rules.lane_bytes)
    group_of_tile = (np.cumsum(num_blocks[order]) - 1) // max(max_items, 1)
    bounds = np.flatnonzero(np.diff(group_of_tile)) + 1
    return [
        _build_group(
            rows[lanes[tiles]],
            tile_positions[tiles],
            _Blocks(
                newest_blocks[tiles],
                num_blocks[tiles],
                slot_starts[tile_branch[tiles]],
                slot_lens[tile_branch[tiles]],
            ),
            slots,
            window,
        )
        for tiles in np.split(order, bounds)
    ]


class _Blocks(NamedTuple):
    """Key blocks of each tile and where its branch's slots lie; each [tiles]."""

    newest: IntArray
    number: IntArray
    slot_start: IntArray
    slot_len: IntArray


def _build_group(
    rows: IntArray,  # [tiles, tile_rows]
    positions: IntArray,  # [tiles, tile_rows]
    blocks: _Blocks,
    slots: IntArray,
    window: int | None,
) -> TileGroup:
    ranks = np.arange(blocks.number[0])
    rank_counts = (blocks.number[:, None] > ranks).sum(0)
    item_rank, item_tile = _repeat_with_rank(rank_counts)

    first_positions = (blocks.newest[item_tile] - item_rank) * KEY_BLOCK_LEN
    key_positions = first_positions[:, None] + np.arange(KEY_BLOCK_LEN)
    is_stored = key_positions < blocks.slot_len[item_tile][:, None]
    slot_index = blocks.slot_start[item_tile][:, None] + key_positions
    item_slots = np.where(is_stored, slots[np.minimum(slot_index, len(slots) - 1)], 0)

    is_masked = positions[item_tile, 0] < key_positions[:, -1]
    if window:
        is_masked |= positions[item_tile, -1] - key_positions[:, 0] >= window
    masked = slice(int(np.flatnonzero(is_masked).max(initial=-1)) + 1)
    distance = positions[item_tile[masked], :, None] - key_positions[masked, None, :]
    visible = distance >= 0
    if window:
        visible &= distance < window
    tiles = np.arange(len(rows))[:, None]
    tile_items = np.where(blocks.number[:, None] > ranks, _starts(rank_counts) + tiles, tiles)
    return TileGroup(
        tile_rows=rows.shape[1],
        rows=rows,
        item_tile=item_tile,
        item_slots=item_slots,
        visible=visible,
        tile_items=tile_items,
        rank_counts=tuple(rank_counts.tolist()),
    )


def _starts(lens: IntArray) -> IntArray:
    """Where each of consecutive runs of `lens` begins."""
    return np.cumsum(lens) - lens


def _repeat_with_rank(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Index i `counts[i]` times, and for each its rank 0, 1, ... among the equal ones."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - _starts(counts)[index]
