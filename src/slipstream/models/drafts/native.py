"""A draft net in native kernels: what one call for all of a pass needs of it."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape
from slipstream.attention.native import fits, scale_addresses, struct_of
from slipstream.kernels import draft_structs, structs
from slipstream.kernels.matrix import OUT_STEP, PackedMatrix
from slipstream.models.drafts.hparams import (
    DFlash2Hparams,
    DFlashHparams,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
)
from slipstream.models.drafts.net import DraftNet
from slipstream.models.drafts.packed import PackedProducts
from slipstream.models.layers.embedding import PackedEnds
from slipstream.models.native_net import NativeNet, NetRoom

_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj")


def is_native(hparams: DraftHparams) -> bool:
    """Whether the native passes compute nets of this shape; all others are torch's."""
    body = hparams.body
    is_known = isinstance(hparams, Eagle3Hparams) or (
        isinstance(hparams, DFlashHparams)
        and not isinstance(hparams, DFlash2Hparams)
        and hparams.draft_block_len <= draft_structs.MAX_BLOCK_LEN
    )
    has_plain_head = not isinstance(hparams, DSparkHparams) or hparams.markov_kind in (
        None,
        "vanilla",
    )
    return (
        is_known
        and has_plain_head
        and fits(_shape(hparams))
        and body.intermediate_size % OUT_STEP == 0
        and all(layer.window is None for layer in body.layers)
    )


class NativeDraftNet(NativeNet):
    """A draft net whose products are packed and whose ends are native."""

    def __init__(self, net: DraftNet[DraftHparams], room: NetRoom) -> None:
        products, ends = net.products, net.ends.packed()
        assert isinstance(products, PackedProducts)
        assert ends is not None
        self._net = net
        self._products = products
        self._storage = room.storage
        self._norms: list[Tensor] = []
        hparams, body = net.hparams, net.hparams.body
        self._layers = (structs.Layer * body.num_layers)()
        for index, layer in enumerate(self._layers):
            self._fill(layer, index)
        tables = [net.rotary.table(params.rotary) for params in body.layers]
        super().__init__(products.library, self._layers, tables, body.head_dim)
        self._ends = self._packed_ends(ends)
        self._token_ids = np.ascontiguousarray(net.target_token_ids().numpy(), np.uint32)
        self.struct = draft_structs.DraftNet(
            passes=self._pass(),
            fusion=products.matrix("fc").struct(),
            token_ids=self._token_ids.ctypes.data,
            first_spare_slot=room.first_spare_slot,
            rules=room.rules,
            logit_scale=1.0,
            num_drawable=room.num_drawable,
            num_taps=hparams.num_taps,
            tap_size=hparams.target_hidden_size,
            seat_slots=room.seat_slots,
        )
        if isinstance(hparams, DFlashHparams):
            self._describe_block(hparams)
        if isinstance(hparams, DSparkHparams):
            self._describe_heads(hparams)
        if isinstance(hparams, Eagle3Hparams):
            self._describe_chain(hparams)

    def _fill(self, layer: structs.Layer, index: int) -> None:
        body, prefix = self._net.hparams.body, f"layers.{index}"
        layer.input_norm = self._norm(f"{prefix}.input_layernorm")
        layer.mlp_norm = self._norm(f"{prefix}.post_attention_layernorm")
        if body.has_qk_norm:
            layer.q_norm = self._norm(f"{prefix}.self_attn.q_norm")
            layer.k_norm = self._norm(f"{prefix}.self_attn.k_norm")
        matrix = self._products.matrix
        layer.qkv = matrix(*(f"{prefix}.{name}" for name in _ATTENTION)).struct()
        layer.attention_output = matrix(f"{prefix}.self_attn.o_proj").struct()
        layer.gate_up = matrix(*(f"{prefix}.{name}" for name in _MLP)).struct()
        layer.down = matrix(f"{prefix}.mlp.down_proj").struct()
        layer.keys = self._storage.keys[index].data_ptr()
        layer.values = self._storage.values[index].data_ptr()
        layer.key_scales, layer.value_scales = scale_addresses(self._storage, index)

    def _packed_ends(self, ends: PackedEnds) -> PackedEnds:
        """The net's own matrices where it has them."""
        hparams, matrix = self._net.hparams, self._products.matrix
        own = hparams.has_own_embeddings
        scale = 0.0 if own else ends.embedding_scale
        if isinstance(hparams, DFlashHparams) and hparams.embedding_scale != 1.0:
            assert scale == 0.0
            scale = hparams.embedding_scale
        return PackedEnds(
            matrix("embed_tokens") if own else ends.embeddings,
            matrix("lm_head") if hparams.has_own_head else ends.head,
            float(torch.tensor(scale).bfloat16()),
        )

    def _pass(self) -> structs.Pass:
        body = self._net.hparams.body
        return structs.Pass(
            layers=ctypes.addressof(self._layers),
            embeddings=ctypes.addressof(self._ends.embeddings.single()),
            final_norm=self._norm("norm"),
            head=self._ends.head.struct(),
            shape=struct_of(_shape(self._net.hparams), self._storage.dtype),
            embedding_scale=self._ends.embedding_scale,
            num_layers=body.num_layers,
            hidden_size=body.hidden_size,
            intermediate_size=body.intermediate_size,
            gate=structs.GATES[body.activation],
        )

    def _describe_block(self, hparams: DFlashHparams) -> None:
        body, struct = hparams.body, self.struct
        self._context_matrices: list[PackedMatrix] = []
        self._context = (structs.Matrices * body.num_layers)()
        for index in range(body.num_layers):
            whole = self._products.matrix(*(f"layers.{index}.{name}" for name in _ATTENTION))
            self._context_matrices.append(whole.outputs(body.q_size, 2 * body.kv_size))
            self._context[index] = self._context_matrices[-1].struct()
            is_causal = hparams.causal_layers[index]
            self._layers[index].plan = (
                draft_structs.CAUSAL if is_causal else draft_structs.WHOLE_BLOCK
            )
        struct.context = ctypes.addressof(self._context)
        struct.fusion_norm = self._norm("hidden_norm")
        struct.mask_token = hparams.mask_token_id
        struct.block_len = hparams.draft_block_len
        struct.first_draft_row = hparams.first_draft_row
        struct.logit_scale, struct.logit_cap = hparams.logit_scale, hparams.logit_cap or 0.0

    def _describe_heads(self, hparams: DSparkHparams) -> None:
        struct, products = self.struct, self._products
        if hparams.markov_kind is not None:
            markov_in = products.matrix("markov_head.markov_w1")
            struct.markov_in = ctypes.addressof(markov_in.single())
            struct.markov_out = products.matrix("markov_head.markov_w2").struct()
        if hparams.has_confidence:
            name = "confidence_head.proj"
            zeros = torch.zeros(1, products.matrix(name).shape[1])
            self._confidence = products.rows(name, torch.zeros(1, dtype=torch.int64))[0]
            struct.confidence = self._confidence.data_ptr()
            temperatures = hparams.confidence_temperatures or (1.0,) * hparams.max_draft_len
            self._confidence_scales = 1.0 / np.array(temperatures, np.float32)
            struct.confidence_scales = self._confidence_scales.ctypes.data
            struct.confidence_bias = float(products(name, zeros))
            struct.confidence_reads_markov = hparams.confidence_reads_markov

    def _describe_chain(self, hparams: Eagle3Hparams) -> None:
        struct = self.struct
        if hparams.has_input_norm:
            struct.fusion_norm = self._norm("input_norm")
        struct.embedding_norm = self._norm("layers.0.input_layernorm")
        struct.hidden_norm = self._norm("layers.0.hidden_norm")
        struct.has_normed_residual = hparams.has_normed_residual
        struct.recycles_normed = hparams.recycles_normed

    def _norm(self, name: str) -> structs.Norm:
        weight = self._net.parameters[f"{name}.weight"].float().contiguous()
        self._norms.append(weight)
        return structs.Norm(weight.data_ptr(), self._net.hparams.body.norm_eps, len(weight))


def _shape(hparams: DraftHparams) -> AttentionShape:
    body = hparams.body
    return AttentionShape(body.num_heads, body.kv_heads, body.head_dim, body.attention_scale)
