"""Latent attention: the cache keeps one short vector a token, which all heads read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.hparams import LatentParams, RotaryParams
from slipstream.models.layers.block import LayerContext
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention in the space of the latents, for prompts and for decoding alike.

    A head's key is W_k c and its value W_v c, with c the token's latent. Instead of making either,
    queries are brought into the latents' space (q W_k), attend over the latents themselves, and
    the mix of latents goes through W_v. So every row is computed by the same operations, and the
    cache holds c and the rotary part of the keys: one head, whose key is also its value.

    Attributes:
        cache_layer: Layer of the storage that keeps its latents.
        down: Rows of queries (or of what `query_up` makes them of), latents, rotary keys.
        query_norm, query_up: Between; None where queries come from the row itself.
        into_latent, out_of_latent: By head, [kv_rank, nope_dim] and [value_dim, kv_rank].
    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1 and appendix C.
    """

    cache_layer: int
    num_heads: int
    params: LatentParams
    rotary: RotaryParams
    down: Linear
    query_norm: RmsNorm | None
    query_up: Linear | None
    kv_norm: RmsNorm
    into_latent: Sequence[Linear]
    out_of_latent: Sequence[Linear]
    output: Linear

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """See `Part`; each row's latent is stored in its slot on the way."""
        params, num_rows = self.params, len(normed)
        down = context.multiply(self.down, normed.to(context.dtype))
        kv_size = params.kv_rank + params.rope_dim
        queries = down[:, :-kv_size]
        if self.query_norm is not None and self.query_up is not None:
            queries = self.query_norm(queries).to(context.dtype)
            queries = context.multiply(self.query_up, queries)
        heads = queries.reshape(num_rows, self.num_heads, params.nope_dim + params.rope_dim)
        latent, rope_key = down[:, -kv_size:].split_with_sizes([params.kv_rank, params.rope_dim], 1)
        # The rotary parts of all queries and of the one key turn alike.
        turning = torch.cat((heads[:, :, params.nope_dim :], rope_key.unsqueeze(1)), 1).float()
        turned = context.rotations[self.rotary].apply(self._halved(turning))
        key = torch.cat((self.kv_norm(latent).unsqueeze(1), turned[:, -1:]), -1)
        context.storage.write(self.cache_layer, context.slots, key, None)
        into = self._by_head(self.into_latent, heads[:, :, : params.nope_dim], context)
        mixed = context.attention[None].attend(
            self.cache_layer, torch.cat((into.float(), turned[:, :-1]), -1), context.storage
        )
        mixed = mixed.view(num_rows, self.num_heads, kv_size)[:, :, : params.kv_rank]
        values = self._by_head(self.out_of_latent, mixed, context)
        return context.multiply(self.output, values.reshape(num_rows, -1))

    def linears(self) -> tuple[Linear, ...]:
        """See `Part`."""
        up = () if self.query_up is None else (self.query_up,)
        return (self.down, *up, *self.into_latent, *self.out_of_latent, self.output)

    def norms(self) -> tuple[RmsNorm, ...]:
        """See `Part`."""
        return (self.kv_norm,) if self.query_norm is None else (self.query_norm, self.kv_norm)

    def _halved(self, x: Tensor) -> Tensor:
        """Neighbouring pairs as pairs of halves; a product of two such vectors stays the same."""
        if not self.params.is_interleaved:
            return x
        return x.view(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)

    def _by_head(self, linears: Sequence[Linear], x: Tensor, context: LayerContext) -> Tensor:
        """[rows, heads, num_in] -> [rows, heads, num_out], a product for each head."""
        heads = x.to(context.dtype).transpose(0, 1).contiguous()
        made = [context.multiply(linear, head) for linear, head in zip(linears, heads, strict=True)]
        return torch.stack(made, 1)
