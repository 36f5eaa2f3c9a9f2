"""Exact attention in plain torch: fixed key blocks by absolute position, one bmm for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape, IntArray, KvReader, Rows
from slipstream.attention.plan import KEY_BLOCK_LEN, TileGroup, TilingRules, build_plan
from slipstream.attention.row_proof import BASE_ROWS, cancelling_operands, prove_pointwise
from slipstream.errors import NumericsError

_TILE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_GROUP_BYTES = 8 * 2**20  # what a core's second-level cache and a bit more holds


class TorchAttention:
    """The backend `torch`: float32 products whose tile sizes are proved equal when it is made.

    Each item (a tile of rows, a block of 128 key positions) is one matrix of a batched product, so
    the number of items cannot change an item. The row's maximum is exact in any order; masked
    positions weigh exactly zero; a row's blocks are added from its newest back, those that only
    other rows of its tile see as exact zeros.

    Raises:
        NumericsError: If no tile size is exact with this build of torch.
    """

    name = "torch"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.tile_sizes: tuple[int, ...] = ()
        self.prove()

    def kernel(self, kv_dtype: torch.dtype) -> str:
        """See `AttentionBackend.kernel`."""
        return f"torch:{str(kv_dtype).removeprefix('torch.')}"

    def prove(self) -> None:
        """See `AttentionBackend.prove`."""
        shape = self.shape
        prove_pointwise("exp", torch.exp, -torch.linspace(0, 100, 4096))
        self.tile_sizes = _admitted_tiles(shape)
        if not self.tile_sizes:
            raise NumericsError(
                f"batched products of {shape.num_heads} heads of {shape.head_dim} are not exact "
                f"in any of the tile sizes {_TILE_SIZES} with torch {torch.__version__}",
                hint="use an official torch build for this processor",
            )

    def prepare(
        self, branches: Sequence[Rows], num_rows: int, window: int | None
    ) -> TorchPreparedAttention:
        """See `AttentionBackend.prepare`."""
        kv_width = self.shape.kv_heads * self.shape.head_dim
        rules = TilingRules(
            self.tile_sizes,
            item_bytes=2 * 4 * KEY_BLOCK_LEN * kv_width,
            lane_bytes=4 * KEY_BLOCK_LEN * self.shape.num_heads,
            group_bytes=_GROUP_BYTES,
        )
        plan = build_plan(branches, num_rows, window, rules)
        groups = tuple(_indices(group, self.shape) for group in plan.groups)
        return TorchPreparedAttention(self.shape, groups, torch.from_numpy(plan.lane_of_row))


@dataclass(frozen=True, slots=True)
class _Indices:
    """A tile group as tensors; see `TileGroup`."""

    tile_rows: int
    num_tiles: int
    num_items: int
    item_rows: Tensor  # [items * tile_rows]
    item_slots: Tensor  # [items * 128]
    item_tile: Tensor  # [items]
    tile_items: Tensor  # [tiles * ranks]
    rank_counts: tuple[int, ...]
    hidden: Tensor  # [masked items, 1, tile_rows * group_size, 128] bool


@dataclass(frozen=True, slots=True)
class TorchPreparedAttention:
    """See `PreparedAttention`; made by `TorchAttention.prepare`."""

    shape: AttentionShape
    groups: tuple[_Indices, ...]
    lane_of_row: Tensor  # [rows]

    def attend(self, layer: int, queries: Tensor, storage: KvReader) -> Tensor:
        """See `PreparedAttention.attend`."""
        parts = [_attend_group(self.shape, group, layer, queries, storage) for group in self.groups]
        lanes = parts[0] if len(parts) == 1 else torch.cat(parts)
        return lanes.index_select(0, self.lane_of_row)


def _attend_group(
    shape: AttentionShape, group: _Indices, layer: int, queries: Tensor, storage: KvReader
) -> Tensor:  # [tiles * tile_rows, heads * head_dim]
    num_items, num_tiles = group.num_items, group.num_tiles
    kv_heads, head_dim, tile_rows = shape.kv_heads, shape.head_dim, group.tile_rows
    tile_heads = tile_rows * shape.group_size
    lanes = kv_heads * tile_heads

    q = queries.index_select(0, group.item_rows)
    q = q.view(num_items, tile_rows, kv_heads, shape.group_size, head_dim).transpose(1, 2)
    q = q.reshape(num_items * kv_heads, tile_heads, head_dim)
    # Not as the product's alpha: MKL scales one operand or the other, depending on the shape.
    q.mul_(shape.scale)
    stored_keys, stored_values = storage.gather(layer, group.item_slots)
    k = _by_head(stored_keys, num_items)
    v = _by_head(stored_values, num_items)

    scores = torch.bmm(q, k.transpose(1, 2))
    if len(group.hidden):  # filled, not added: a hidden key may be NaN
        masked = scores[: len(group.hidden) * kv_heads]
        masked.view(-1, kv_heads, tile_heads, KEY_BLOCK_LEN).masked_fill_(group.hidden, -torch.inf)
    block_max = scores.amax(-1).view(num_items, lanes).index_select(0, group.tile_items)
    row_max = block_max.view(num_tiles, -1, lanes).amax(1).index_select(0, group.item_tile)
    weights = scores.sub_(row_max.view(num_items * kv_heads, tile_heads, 1)).exp_()

    total = _add_by_rank(weights.sum(-1).view(num_items, lanes), group)
    mixed = _add_by_rank(torch.bmm(weights, v).view(num_items, lanes, head_dim), group)
    mixed.div_(total.unsqueeze(-1))
    mixed = mixed.view(num_tiles, kv_heads, tile_rows, shape.group_size, head_dim).transpose(1, 2)
    return mixed.reshape(num_tiles * tile_rows, shape.num_heads * head_dim)


def _add_by_rank(of_items: Tensor, group: _Indices) -> Tensor:
    """Sum over each tile's items from the newest block back: [items, ...] -> [tiles, ...]."""
    sums = of_items[: group.num_tiles]
    start = group.num_tiles
    for count in group.rank_counts[1:]:
        sums[:count].add_(of_items[start : start + count])
        start += count
    return sums


def _by_head(stored: Tensor, num_items: int) -> Tensor:
    """[items * 128, kv_heads, head_dim] in any dtype -> [items * kv_heads, 128, head_dim] f32."""
    _, kv_heads, head_dim = stored.shape
    by_head = torch.empty(num_items, kv_heads, KEY_BLOCK_LEN, head_dim)
    by_head.copy_(stored.view(num_items, KEY_BLOCK_LEN, kv_heads, head_dim).transpose(1, 2))
    return by_head.view(num_items * kv_heads, KEY_BLOCK_LEN, head_dim)


def _indices(group: TileGroup, shape: AttentionShape) -> _Indices:
    hidden = torch.from_numpy(~group.visible).repeat_interleave(shape.group_size, 1).unsqueeze(1)
    return _Indices(
        tile_rows=group.tile_rows,
        num_tiles=group.num_tiles,
        num_items=group.num_items,
        item_rows=_flat(group.rows[group.item_tile]),
        item_slots=_flat(group.item_slots),
        item_tile=_flat(group.item_tile),
        tile_items=_flat(group.tile_items),
        rank_counts=group.rank_counts,
        hidden=hidden,
    )


def _flat(array: IntArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1))


def _admitted_tiles(shape: AttentionShape) -> tuple[int, ...]:
    """Tile sizes whose two products are proved equal, bit for bit, to those of the base size."""
    num_heads = shape.group_size * _TILE_SIZES[-1]
    queries, keys = cancelling_operands(num_heads, shape.head_dim, KEY_BLOCK_LEN, seed=0)
    weights, values = cancelling_operands(num_heads, KEY_BLOCK_LEN, shape.head_dim, seed=1)
    values = values.t().contiguous()

    def scores(rows: Tensor, num_items: int) -> Tensor:
        k = keys.expand(num_items, -1, -1).contiguous().transpose(1, 2)
        return torch.bmm(rows.expand(num_items, -1, -1).contiguous(), k)

    def mixed(rows: Tensor, num_items: int) -> Tensor:
        v = values.expand(num_items, -1, -1).contiguous()
        return torch.bmm(rows.expand(num_items, -1, -1).contiguous(), v)

    num_threads = torch.get_num_threads()
    base = BASE_ROWS * shape.group_size
    admitted = set(_TILE_SIZES)
    for product, x in ((scores, queries), (mixed, weights)):
        torch.set_num_threads(1)
        try:
            reference = torch.cat([product(part, 1)[0] for part in x.view(-1, base, x.shape[1])])
        finally:
            torch.set_num_threads(num_threads)
        for size in _TILE_SIZES:
            rows = size * shape.group_size
            for start in (0, num_heads - rows):
                for num_items in (1, 3, 16):
                    got = product(x[start : start + rows], num_items)
                    if not torch.equal(got, reference[start : start + rows].expand_as(got)):
                        admitted.discard(size)
    return tuple(sorted(admitted))
