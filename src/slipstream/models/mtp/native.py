"""A multi-token-prediction head for native calls, which draft chains as those of EAGLE-3 do."""

from __future__ import annotations

import ctypes

import numpy as np

from slipstream.attention.native import fits, scale_addresses, struct_of
from slipstream.kernels import draft_structs, structs
from slipstream.kernels.matrix import OUT_STEP
from slipstream.models.decoder import attention_shape
from slipstream.models.layers.embedding import PackedEnds
from slipstream.models.layers.linear import NativeLinear
from slipstream.models.mtp.heads import MtpHeads
from slipstream.models.native_decoder import fill_layer, matrix_of, norm_struct
from slipstream.models.native_net import NativeNet, NetRoom


def obstacle(heads: MtpHeads) -> str | None:
    """Why native calls cannot draft with these heads; None where they can."""
    hparams, head = heads.hparams, heads.heads[0]
    if heads.num_heads > 1:
        return "there are several heads"
    if not hparams.is_plain:
        return "its layer has experts, latent attention, gates or half-turned heads"
    is_known = (
        fits(attention_shape(hparams))
        and hparams.intermediate_size % OUT_STEP == 0
        and hparams.layers[0].window is None
    )
    if not is_known:
        return "no native pass has a layer of its shape"
    if not isinstance(head.fusion, NativeLinear):
        return "its matrices are not in native kernels"
    if head.ends.packed() is None:
        return "the target's embeddings and vocabulary are not in native kernels"
    return None


class NativeHead(NativeNet):
    """The only head of its kind, without an `obstacle`."""

    def __init__(self, heads: MtpHeads, room: NetRoom) -> None:
        (head,) = heads.heads
        ends = head.ends.packed()
        assert ends is not None
        self._heads, self._ends = heads, ends
        self._layers = (structs.Layer * 1)()
        fill_layer(self._layers[0], head.layer)
        storage, (layer,) = room.storage, self._layers
        layer.keys, layer.values = storage.keys[0].data_ptr(), storage.values[0].data_ptr()
        layer.key_scales, layer.value_scales = scale_addresses(storage, 0)
        fusion, hparams = matrix_of(head.fusion), heads.hparams
        table = heads.rotary_table(hparams.layers[0].rotary)
        super().__init__(fusion.library, self._layers, [table], hparams.head_dim)
        self._token_ids = np.ascontiguousarray(heads.token_ids().numpy(), np.uint32)
        self.struct = draft_structs.DraftNet(
            passes=self._pass(ends, room),
            fusion_norm=norm_struct(heads.target_norm),
            token_ids=self._token_ids.ctypes.data,
            embedding_norm=norm_struct(head.embedding_norm),
            hidden_norm=norm_struct(head.hidden_norm),
            joining=fusion.struct(),
            first_spare_slot=room.first_spare_slot,
            rules=room.rules,
            logit_scale=1.0,
            num_drawable=room.num_drawable,
            num_taps=1,
            tap_size=hparams.hidden_size,
            seat_slots=room.seat_slots,
            recycles_normed=True,
        )

    def _pass(self, ends: PackedEnds, room: NetRoom) -> structs.Pass:
        hparams, (head,) = self._heads.hparams, self._heads.heads
        return structs.Pass(
            layers=ctypes.addressof(self._layers),
            embeddings=ctypes.addressof(ends.embeddings.single()),
            final_norm=norm_struct(head.final_norm),
            head=ends.head.struct(),
            shape=struct_of(attention_shape(hparams), room.storage.dtype),
            embedding_scale=ends.embedding_scale,
            num_layers=1,
            hidden_size=hparams.hidden_size,
            intermediate_size=hparams.intermediate_size,
            gate=structs.GATES[hparams.activation],
        )
