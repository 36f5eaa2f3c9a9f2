"""Attention over stored keys and values of every head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.hparams import RotaryParams
from slipstream.models.layers.activation import sigmoid
from slipstream.models.layers.block import LayerContext
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class Attention:
    """Queries, keys and values from one product, and the product behind the mix.

    Attributes:
        cache_layer: Layer of the storage that keeps its keys and values.
        num_heads, kv_heads, head_dim: Shape of all heads.
        qkv: Rows of queries, then keys, then values.
        output: From all heads to the residual stream.
        q_norm, k_norm: Per head, before rotary embedding; None where the family has none.
        window: A key is visible when query position - key position < window; None = all.
        has_gate: Behind each query head's rows come those of a gate on what it gives.
    """

    cache_layer: int
    num_heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    output: Linear
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    window: int | None
    rotary: RotaryParams
    has_gate: bool = False

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """See `Part`; each row's key and value are stored in its slot on the way."""
        num_heads, num_rotated = self.num_heads, self.num_heads + self.kv_heads
        heads = context.multiply(self.qkv, normed.to(context.dtype))
        heads = heads.view(len(heads), -1, self.head_dim)
        gates = None
        if self.has_gate:
            gates = heads[:, 1 : 2 * num_heads : 2]
            heads = torch.cat((heads[:, : 2 * num_heads : 2], heads[:, 2 * num_heads :]), 1)
        rotation = context.rotations[self.rotary]
        if self.q_norm is not None and self.k_norm is not None:
            queries = self.q_norm(heads[:, :num_heads])
            keys = self.k_norm(heads[:, num_heads:num_rotated])
            rotated = rotation.apply(torch.cat((queries, keys), 1))
        else:
            rotated = rotation.apply(heads[:, :num_rotated].float())
        storage = context.storage
        storage.write(
            self.cache_layer, context.slots, rotated[:, num_heads:], heads[:, num_rotated:]
        )
        attention = context.attention[self.window]
        mixed = attention.attend(self.cache_layer, rotated[:, :num_heads], storage)
        if gates is not None:
            mixed = mixed.mul_(sigmoid(gates.float()).flatten(1))
        return context.multiply(self.output, mixed.to(context.dtype))

    def linears(self) -> tuple[Linear, ...]:
        """See `Part`."""
        return self.qkv, self.output

    def norms(self) -> tuple[RmsNorm, ...]:
        """See `Part`."""
        return tuple(norm for norm in (self.q_norm, self.k_norm) if norm is not None)
