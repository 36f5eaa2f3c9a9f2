"""Attention of draft nets with products in bfloat16, of what rows can see alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.models.drafts.parts import LayerKv

# Blocks that start near each other see nearly the same context; what none of them sees is left out.
_CHUNK_BLOCKS = 48


def attend_bfloat16(
    queries: Tensor,  # [batch, blocks, rows, heads, head_dim]
    context: LayerKv,
    context_visible: Tensor,
    own: LayerKv,
    own_visible: Tensor,
    scale: float,
) -> Tensor:
    """See `models.drafts.parts.attend`; scores and weights are rounded to bfloat16."""
    batch, blocks, rows, _, _ = queries.shape
    queries = (queries * scale).bfloat16()
    context, own = _rounded(context), _rounded(own)
    own_visible = own_visible.expand(batch, blocks, rows, -1)
    mixed = []
    # Split, not indexed: the gradient of an index is as large as the whole.
    for of_context, *of_batch in zip(
        _by_batch(context),
        *(x.unbind() for x in (queries, context_visible, own.keys, own.values, own_visible)),
        strict=True,
    ):
        chunks = (x.split(_CHUNK_BLOCKS) for x in of_batch)
        for some, visible, keys, values, visible_own in zip(*chunks, strict=True):
            seen = _seen(visible)
            part = LayerKv(of_context.keys[seen], of_context.values[seen])
            own_part = LayerKv(keys, values)
            mixed.append(_attend_chunk(some, part, visible[..., seen], own_part, visible_own))
    return torch.cat(mixed).view(batch, blocks, rows, -1).float()


def _attend_chunk(
    queries: Tensor,  # [blocks, rows, heads, head_dim], scaled
    context: LayerKv,  # [len, kv_heads, head_dim]
    context_visible: Tensor,  # [blocks, rows, len]
    own: LayerKv,  # [blocks, own, kv_heads, head_dim]
    own_visible: Tensor,  # [blocks, rows, own]
) -> Tensor:
    """Blocks that share one context. Returns: [blocks, rows, heads * head_dim] bfloat16."""
    blocks, rows, heads, head_dim = queries.shape
    context_len, kv_heads, _ = context.keys.shape
    group = heads // kv_heads
    # [kv_heads, blocks, rows, group, head_dim]: all rows that read one key head together
    grouped = queries.view(blocks, rows, kv_heads, group, head_dim).permute(2, 0, 1, 3, 4)
    of_context = grouped.reshape(kv_heads, blocks * rows * group, head_dim)
    of_own = grouped.reshape(kv_heads * blocks, rows * group, head_dim)
    keys, values = context.keys.transpose(0, 1), context.values.transpose(0, 1)
    own_keys, own_values = _by_block(own.keys), _by_block(own.values)
    leading = (kv_heads, blocks, rows, group)
    scores = torch.cat(
        (
            torch.bmm(of_context, keys.transpose(1, 2)).view(*leading, context_len),
            torch.bmm(of_own, own_keys.transpose(1, 2)).view(*leading, -1),
        ),
        -1,
    )
    hidden = ~torch.cat((context_visible, own_visible), -1)[None, :, :, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    to_context, to_own = weights[..., :context_len], weights[..., context_len:]
    to_context = to_context.reshape(kv_heads, blocks * rows * group, context_len)
    to_own = to_own.reshape(kv_heads * blocks, rows * group, own_values.shape[1])
    mixed = torch.bmm(to_context, values) + torch.bmm(to_own, own_values).view_as(of_context)
    mixed = mixed.view(*leading, head_dim)
    return mixed.permute(1, 2, 0, 3, 4).reshape(blocks, rows, heads * head_dim)


def _seen(visible: Tensor) -> slice:
    """Of [..., len] bool, the shortest part of the last axis that holds all that is true."""
    places = visible.flatten(0, -2).any(0).nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _rounded(kv: LayerKv) -> LayerKv:
    return LayerKv(kv.keys.bfloat16(), kv.values.bfloat16())


def _by_batch(kv: LayerKv) -> list[LayerKv]:
    return [LayerKv(*pair) for pair in zip(kv.keys, kv.values, strict=True)]


def _by_block(x: Tensor) -> Tensor:
    """[blocks, own, kv_heads, head_dim] -> [kv_heads * blocks, own, head_dim]."""
    return x.permute(2, 0, 1, 3).flatten(0, 1)
