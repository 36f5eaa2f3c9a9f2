"""One decoder layer from a checkpoint, by what its parameters say it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from slipstream.attention.row_proof import prove_pointwise
from slipstream.kernels.matrix import StoredWeight
from slipstream.models.delta_reader import read_delta_net
from slipstream.models.hparams import Hparams, LatentParams, MoeParams
from slipstream.models.layers.activation import gated_activation
from slipstream.models.layers.attention import Attention
from slipstream.models.layers.block import DecoderLayer, Part
from slipstream.models.layers.latent import LatentAttention
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.mlp import DenseMlp
from slipstream.models.layers.moe import Experts
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.weight_reader import WeightReader


class LayerReader:
    """Reads the layers of one model; projections that read the same input become one matrix."""

    def __init__(self, reader: WeightReader, hparams: Hparams) -> None:
        self._reader = reader
        self._hparams = hparams
        self._activation = gated_activation(hparams.activation, reader.dtype)
        if not hparams.is_plain:  # routers, gates and decays are made of these
            prove_pointwise("exp", torch.exp, torch.linspace(-30.0, 30.0, 4096))
            prove_pointwise("log1p", torch.log1p, torch.linspace(0.0, 1e6, 4096))

    def layer(self, index: int, prefix: str | None = None) -> DecoderLayer:
        """One layer.

        Args:
            prefix: What the names of its tensors begin with, where it is no layer of the decoder.
        """
        hparams = self._hparams
        prefix = prefix or f"{hparams.weights_prefix}.layers.{index}"
        hidden, sandwich = hparams.hidden_size, hparams.has_sandwich_norms
        mlp_norm = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        return DecoderLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm", hidden),
            mixer=self._mixer(index, prefix),
            mixer_output_norm=self.norm(f"{prefix}.post_attention_layernorm", hidden)
            if sandwich
            else None,
            mlp_norm=self.norm(f"{prefix}.{mlp_norm}", hidden),
            mlp=self._mlp(index, f"{prefix}.mlp"),
            mlp_output_norm=self.norm(f"{prefix}.post_feedforward_layernorm", hidden)
            if sandwich
            else None,
        )

    def norm(self, name: str, size: int) -> RmsNorm:
        """A norm of the model's own kind."""
        hparams = self._hparams
        return self._reader.norm(
            name, size, hparams.norm_eps, is_zero_centred=hparams.is_norm_zero_centred
        )

    def _mixer(self, index: int, prefix: str) -> Part:
        if self._hparams.latent is not None:
            return self._latent(index, f"{prefix}.self_attn", self._hparams.latent)
        delta = self._hparams.layers[index].delta
        if delta is not None:
            return read_delta_net(self._reader, self._hparams, index, f"{prefix}.linear_attn")
        return self._attention(index, f"{prefix}.self_attn")

    def _latent(self, index: int, prefix: str, latent: LatentParams) -> LatentAttention:
        """Queries and latents come from one product; the two ways out of the latents by head."""
        reader, hparams = self._reader, self._hparams
        hidden, num_heads = hparams.hidden_size, hparams.num_heads
        query_size = num_heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        first = {f"{prefix}.q_proj": query_size} if rank is None else {f"{prefix}.q_a_proj": rank}
        into, out = self._latent_ways(prefix, latent)
        return LatentAttention(
            cache_layer=index,
            num_heads=num_heads,
            params=latent,
            rotary=hparams.layers[index].rotary,
            down=reader.linear(
                first | {f"{prefix}.kv_a_proj_with_mqa": latent.kv_rank + latent.rope_dim}, hidden
            ),
            query_norm=self.norm(f"{prefix}.q_a_layernorm", rank) if rank else None,
            query_up=reader.linear({f"{prefix}.q_b_proj": query_size}, rank) if rank else None,
            kv_norm=self.norm(f"{prefix}.kv_a_layernorm", latent.kv_rank),
            into_latent=tuple(reader.linear_of([matrix]) for matrix in into),
            out_of_latent=tuple(reader.linear_of([matrix]) for matrix in out),
            output=reader.linear({f"{prefix}.o_proj": hidden}, num_heads * latent.value_dim),
        )

    def _latent_ways(
        self, prefix: str, latent: LatentParams
    ) -> tuple[Sequence[StoredWeight], Sequence[StoredWeight]]:
        """By head, into the latents and out of them: stored as one matrix, or as two by head."""
        reader, num_heads = self._reader, self._hparams.num_heads
        rank, nope_dim, value_dim = latent.kv_rank, latent.nope_dim, latent.value_dim
        if reader.has(f"{prefix}.k_b_proj.weight"):
            into = reader.matrices(f"{prefix}.k_b_proj.weight", num_heads, rank, nope_dim)
            out = reader.matrices(f"{prefix}.v_b_proj.weight", num_heads, value_dim, rank)
            return list(into), list(out)
        both = reader.tensor(f"{prefix}.kv_b_proj.weight", num_heads * (nope_dim + value_dim), rank)
        ups = both.view(num_heads, -1, rank)
        into_all, out_all = ups[:, :nope_dim].transpose(1, 2), ups[:, nope_dim:]
        return list(into_all.contiguous()), list(out_all.contiguous())

    def _attention(self, index: int, prefix: str) -> Part:
        hparams, params = self._hparams, self._hparams.layers[index]
        q_rows = 2 * hparams.q_size if hparams.has_output_gate else hparams.q_size
        sizes = {"q_proj": q_rows, "k_proj": hparams.kv_size, "v_proj": hparams.kv_size}
        has_norms = hparams.has_qk_norm
        return Attention(
            cache_layer=sum(layer.delta is None for layer in hparams.layers[:index]),
            num_heads=hparams.num_heads,
            kv_heads=hparams.kv_heads,
            head_dim=hparams.head_dim,
            qkv=self._reader.linear(
                {f"{prefix}.{name}": size for name, size in sizes.items()},
                hparams.hidden_size,
                has_bias=hparams.qkv_bias,
            ),
            output=self._reader.linear(
                {f"{prefix}.o_proj": hparams.hidden_size},
                hparams.q_size,
                has_bias=hparams.output_bias,
            ),
            q_norm=self.norm(f"{prefix}.q_norm", hparams.head_dim) if has_norms else None,
            k_norm=self.norm(f"{prefix}.k_norm", hparams.head_dim) if has_norms else None,
            window=params.window,
            rotary=params.rotary,
            has_gate=hparams.has_output_gate,
        )

    def _mlp(self, index: int, prefix: str) -> Part:
        moe = self._hparams.layers[index].moe
        if moe is not None:
            return self._experts(prefix, moe)
        return self._dense(prefix, self._hparams.intermediate_size)

    def _dense(self, prefix: str, size: int) -> DenseMlp:
        hidden, has_bias = self._hparams.hidden_size, self._hparams.mlp_bias
        return DenseMlp(
            gate_up=self._reader.linear(
                {f"{prefix}.gate_proj": size, f"{prefix}.up_proj": size}, hidden, has_bias=has_bias
            ),
            down=self._reader.linear({f"{prefix}.down_proj": hidden}, size, has_bias=has_bias),
            activation=self._activation,
        )

    def _experts(self, prefix: str, moe: MoeParams) -> Experts:
        reader, hidden = self._reader, self._hparams.hidden_size
        router = [reader.tensor(f"{prefix}.gate.weight", moe.num_experts, hidden)]
        if moe.is_shared_gated:
            router.append(reader.tensor(f"{prefix}.shared_expert_gate.weight", 1, hidden))
        shared = "shared_expert" if moe.is_shared_gated else "shared_experts"
        gate_ups, downs = self._expert_products(f"{prefix}.experts", moe)
        return Experts(
            params=moe,
            router=reader.exact_linear_of(router),
            bias=reader.tensor(f"{prefix}.gate.e_score_correction_bias", moe.num_experts).float()
            if moe.has_bias
            else None,
            gate_ups=gate_ups,
            downs=downs,
            activation=self._activation,
            shared=self._dense(f"{prefix}.{shared}", moe.shared_size) if moe.shared_size else None,
        )

    def _expert_products(
        self, prefix: str, moe: MoeParams
    ) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
        """Products into and out of each expert; they are stored one by one or all in one tensor."""
        reader, hidden = self._reader, self._hparams.hidden_size
        count, size = moe.num_experts, moe.expert_size
        if not (reader.has(f"{prefix}.gate_up_proj") or reader.has(f"{prefix}.gate_proj.weight")):
            experts = [f"{prefix}.{expert}" for expert in range(count)]
            return (
                tuple(
                    reader.linear({f"{one}.gate_proj": size, f"{one}.up_proj": size}, hidden)
                    for one in experts
                ),
                tuple(reader.linear({f"{one}.down_proj": hidden}, size) for one in experts),
            )
        down = "down_proj" if reader.has(f"{prefix}.down_proj") else "down_proj.weight"
        return (
            tuple(reader.linear_of(parts) for parts in self._stacked_gate_ups(prefix, moe)),
            tuple(
                reader.linear_of([part])
                for part in reader.matrices(f"{prefix}.{down}", count, hidden, size)
            ),
        )

    def _stacked_gate_ups(self, prefix: str, moe: MoeParams) -> Iterator[list[StoredWeight]]:
        reader, hidden = self._reader, self._hparams.hidden_size
        count, size = moe.num_experts, moe.expert_size
        if reader.has(f"{prefix}.gate_up_proj"):
            both = reader.matrices(f"{prefix}.gate_up_proj", count, 2 * size, hidden)
            yield from ([part] for part in both)
            return
        gates = reader.matrices(f"{prefix}.gate_proj.weight", count, size, hidden)
        ups = reader.matrices(f"{prefix}.up_proj.weight", count, size, hidden)
        yield from ([gate, up] for gate, up in zip(gates, ups, strict=True))
