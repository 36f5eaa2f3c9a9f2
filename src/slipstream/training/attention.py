"""Attention of draft nets with products in bfloat16: half the memory traffic of the exact one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.models.drafts.parts import LayerKv


def attend_bfloat16(
    queries: Tensor,  # [batch, blocks, rows, heads, head_dim]
    context: LayerKv,
    context_visible: Tensor,
    own: LayerKv,
    own_visible: Tensor,
    scale: float,
) -> Tensor:
    """See `models.drafts.parts.attend`; scores and weights are rounded to bfloat16."""
    batch, blocks, rows, heads, head_dim = queries.shape
    kv_heads, own_len = own.keys.shape[-2], own.keys.shape[2]
    group = heads // kv_heads
    # [batch, kv_heads, blocks, rows, group, head_dim]: all rows that read one key head together
    grouped = (queries * scale).bfloat16().view(batch, blocks, rows, kv_heads, group, head_dim)
    grouped = grouped.permute(0, 3, 1, 2, 4, 5)
    num_rows = blocks * rows * group
    of_context = grouped.reshape(batch * kv_heads, num_rows, head_dim)
    of_own = grouped.reshape(batch * kv_heads * blocks, rows * group, head_dim)
    keys, values = _by_head(context.keys), _by_head(context.values)
    own_keys, own_values = _by_block(own.keys), _by_block(own.values)
    leading = (batch, kv_heads, blocks, rows, group)
    scores = torch.cat(
        (
            torch.bmm(of_context, keys.transpose(1, 2)).view(*leading, keys.shape[1]),
            torch.bmm(of_own, own_keys.transpose(1, 2)).view(*leading, own_len),
        ),
        -1,
    )
    own_visible = own_visible.expand(batch, blocks, rows, -1)
    hidden = ~torch.cat((context_visible, own_visible), -1)[:, None, :, :, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    context_len = weights.shape[-1] - own_len
    to_context = weights[..., :context_len].reshape(batch * kv_heads, num_rows, context_len)
    to_own = weights[..., context_len:].reshape(-1, rows * group, own_len)
    mixed = torch.bmm(to_context, values).view(*leading, head_dim)
    mixed = mixed + torch.bmm(to_own, own_values).view(*leading, head_dim)
    return mixed.permute(0, 2, 3, 1, 4, 5).reshape(batch, blocks, rows, -1).float()


def _by_head(x: Tensor) -> Tensor:
    """[batch, len, kv_heads, head_dim] -> [batch * kv_heads, len, head_dim] bfloat16."""
    return x.bfloat16().transpose(1, 2).flatten(0, 1)


def _by_block(x: Tensor) -> Tensor:
    """[batch, blocks, own, kv_heads, head_dim] -> [batch * kv_heads * blocks, own, head_dim]."""
    return x.bfloat16().permute(0, 3, 1, 2, 4).flatten(0, 2)
