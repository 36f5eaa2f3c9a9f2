"""EAGLE-3: one layer that reads the target's states and drafts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import Eagle3Hparams
from slipstream.models.drafts.net import DraftNet
from slipstream.models.drafts.parts import Context, LayerKv, empty_context, gated_mlp


@dataclass(frozen=True, slots=True)
class Eagle3Rows:
    """What a pass over rows gives.

    Attributes:
        hidden: [batch, blocks, rows, hidden] what a row drafted behind this one reads.
        normed: The same shape, behind the final norm: what the head reads.
        layers: Keys and values of the rows [batch, blocks, rows, kv_heads, head_dim] by layer.
    """

    hidden: Tensor
    normed: Tensor
    layers: Sequence[LayerKv]


class Eagle3Net(DraftNet[Eagle3Hparams]):
    """Row j pairs what is known behind token j with token j + 1, at rotary position j.

    What is known is the fused taps of the target where the target has read token j, and the
    `hidden` of the draft's own previous row where it has not.

    Source: Li et al. 2025 (arXiv:2503.01840).
    """

    @classmethod
    def parameter_shapes(cls, hparams: Eagle3Hparams) -> dict[str, tuple[int, ...]]:
        """See `DraftNet`."""
        shapes = super().parameter_shapes(hparams)
        shapes["layers.0.hidden_norm.weight"] = (hparams.body.hidden_size,)
        if hparams.has_input_norm:
            shapes["input_norm.weight"] = (hparams.num_taps * hparams.target_hidden_size,)
        return shapes

    @classmethod
    def _layer_width(cls, hparams: Eagle3Hparams, index: int) -> int:
        return hparams.body.hidden_size * (2 if index == 0 else 1)

    def fuse(self, taps: Tensor) -> Tensor:
        """Taps side by side, [..., taps * target hidden] -> [..., hidden]."""
        if self.hparams.has_input_norm:
            taps = self.norm("input_norm", taps)
        return self.products("fc", taps)

    def extend(
        self,
        tokens: Tensor,  # [batch, blocks, rows] int64: the token behind each row's state
        hidden: Tensor,  # [batch, blocks, rows, hidden]: fused taps, or earlier rows' `hidden`
        positions: Tensor,  # [batch, blocks, rows] int64
        context: Context,
        earlier: Sequence[LayerKv],  # by layer [batch, blocks, n, kv_heads, head_dim], or nothing
        own_visible: Tensor,  # [..., rows, n + rows] bool: the earlier rows, then these
    ) -> Eagle3Rows:
        """Compute rows that see a context, earlier rows of their block, and each other.

        Serving: one block; `earlier` are rows of the same draft. Training, step s: every position
        is a block of one row, the context holds the rows of step 0, and `earlier` holds the
        block's rows of the steps between.
        """
        x = hidden.float()
        layers: list[LayerKv] = []
        for index in range(self.hparams.body.num_layers):
            x, normed = self._entered(index, x, tokens)
            rows = self.keys_values(index, normed, positions)
            own = _joined(earlier[index], rows) if earlier else rows
            x = self._layer(index, x, normed, positions, context, own, own_visible)
            layers.append(rows)
        normed = self.norm("norm", x)
        return Eagle3Rows(normed if self.hparams.recycles_normed else x, normed, layers)

    def keep(
        self,
        tokens: Tensor,  # [batch, rows] as in `extend`, and so the others
        hidden: Tensor,
        positions: Tensor,
        visible: Tensor,  # [batch, rows, rows] bool: which rows a row sees
    ) -> list[LayerKv]:
        """By layer, keys and values [batch, rows, ...] of rows that only others read.

        Far less than `extend`: of the last layer nothing else is computed.
        """
        tokens, positions, x = tokens.unsqueeze(1), positions.unsqueeze(1), hidden.float()
        x = x.unsqueeze(1)
        nothing = empty_context(self.hparams.body, len(x), 1)
        layers: list[LayerKv] = []
        for index in range(self.hparams.body.num_layers):
            x, normed = self._entered(index, x, tokens)
            rows = self.keys_values(index, normed, positions)
            layers.append(LayerKv(rows.keys[:, 0], rows.values[:, 0]))
            if index + 1 < self.hparams.body.num_layers:
                x = self._layer(index, x, normed, positions, nothing, rows, visible.unsqueeze(1))
        return layers

    def _entered(self, index: int, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream in front of a layer, and what its attention reads of it."""
        if index > 0:
            return x, self.norm(f"layers.{index}.input_layernorm", x)
        embedded = self.norm("layers.0.input_layernorm", self.embed(tokens))
        normed = self.norm("layers.0.hidden_norm", x)
        x = normed if self.hparams.has_normed_residual else x
        return x, torch.cat((embedded, normed), -1)

    def _layer(
        self,
        index: int,
        x: Tensor,
        normed: Tensor,
        positions: Tensor,
        context: Context,
        own: LayerKv,
        own_visible: Tensor,
    ) -> Tensor:
        """The residual stream behind a layer."""
        prefix = f"layers.{index}"
        mixed = self.attend(
            self.queries(index, normed, positions),
            context.layers[index],
            context.visible_to(positions, None),
            own,
            own_visible,
            self.hparams.body.attention_scale,
        )
        x = x + self.products(f"{prefix}.self_attn.o_proj", mixed)
        normed = self.norm(f"{prefix}.post_attention_layernorm", x)
        return x + gated_mlp(self.products, prefix, normed, self.hparams.body.activation)


def _joined(earlier: LayerKv, rows: LayerKv) -> LayerKv:
    return LayerKv(
        torch.cat((earlier.keys, rows.keys), 2), torch.cat((earlier.values, rows.values), 2)
    )
