"""DFlash: the target's states as keys and values, a block of masks as queries, one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DFlashHparams
from slipstream.models.drafts.net import DraftNet
from slipstream.models.drafts.parts import Context, LayerKv, gated_mlp

B = TypeVar("B", bound=DFlashHparams)
SubLayer = Callable[[Tensor], Tensor]
"""[batch, blocks, rows, hidden] normalised input -> output of the same shape."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What may follow a token at one row of a block.

    Attributes:
        token_ids: [..., n] int64 target ids that have a draft probability.
        logits: [..., n] float32; softmax of them is the draft's distribution.
        state: Goes into the call for the next row; None where nothing is carried.
    """

    token_ids: Tensor
    logits: Tensor
    state: Tensor | None = None


class BlockNet(DraftNet[B]):
    """A block drafter's net; DFlash itself, and what DFlash 2 and DSpark change.

    Rows of a block see all of their context and each other. The context's keys and values come
    from the target's states alone: a committed position costs two products per layer.

    Source: arXiv:2602.06036.
    """

    @classmethod
    def parameter_shapes(cls, hparams: B) -> dict[str, tuple[int, ...]]:
        """See `DraftNet`."""
        hidden_norm = {"hidden_norm.weight": (hparams.body.hidden_size,)}
        return super().parameter_shapes(hparams) | hidden_norm

    def context_features(self, taps: Tensor) -> Tensor:
        """Taps side by side, [..., taps * target hidden] -> [..., hidden], shared by all layers."""
        return self.norm("hidden_norm", self.products("fc", taps))

    def context_kv(self, features: Tensor, positions: Tensor) -> list[LayerKv]:
        """By layer, keys and values of committed positions.

        Args:
            features: [..., hidden] from `context_features`; positions: [...] int64.
        """
        layers = range(self.hparams.body.num_layers)
        return [self.keys_values(index, features, positions) for index in layers]

    def block_tokens(self, anchors: Tensor, num_rows: int) -> Tensor:
        """The anchor followed by masks: [...] int64 -> [..., num_rows]."""
        masks = torch.full_like(anchors, self.hparams.mask_token_id)
        return torch.stack([anchors] + [masks] * (num_rows - 1), -1)

    def block_hidden(
        self,
        tokens: Tensor,  # [batch, blocks, rows] int64
        positions: Tensor,  # [batch, blocks, rows] int64
        context: Context,
    ) -> Tensor:
        """All rows' states behind the final norm: [batch, blocks, rows, hidden] float32."""
        num_rows = tokens.shape[-1]
        every = torch.ones(num_rows, num_rows, dtype=torch.bool, device=tokens.device)
        x = self.embed(tokens) * self.hparams.embedding_scale
        for index in range(self.hparams.body.num_layers):
            own_visible = every.tril() if self.hparams.causal_layers[index] else every
            attention = self._attention(index, positions, context, own_visible)
            prefix = f"layers.{index}"
            normed = self.norm(f"{prefix}.input_layernorm", x)
            x = x + self._around(f"{prefix}.attention_conv", normed, attention)
            normed = self.norm(f"{prefix}.post_attention_layernorm", x)
            x = x + self._around(f"{prefix}.mlp_conv", normed, self._mlp(prefix))
        return self.norm("norm", x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Each row's own logits: [..., hidden] behind the final norm -> [..., draft_vocab]."""
        logits = self.head(hidden) * self.hparams.logit_scale
        cap = self.hparams.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def draft_rows(self, of_block: Tensor) -> Tensor:
        """The rows that draft, of [batch, blocks, rows, ...]."""
        return of_block[:, :, self.hparams.first_draft_row :]

    def choices(
        self,
        hidden: Tensor,  # [..., hidden] a draft row behind the final norm
        logits: Tensor,  # [..., draft_vocab] its `logits`
        previous: Tensor,  # [...] int64 target id of the token in front; the anchor at first
        state: Tensor | None = None,
    ) -> Choices:
        """What may follow `previous`; here rows do not look at it."""
        return Choices(self.target_token_ids().expand(logits.shape), logits)

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """[...] logit of the probability that the row's draft is accepted; None if unknown."""
        return None

    def confidence_temperature(self, index: int) -> float:
        """What draft row `index` divides that logit by, so that it means what it says."""
        return 1.0

    def _around(self, name: str, normed: Tensor, sub_layer: SubLayer) -> Tensor:
        """The sub-layer's contribution to the residual stream."""
        return sub_layer(normed)

    def _attention(
        self, index: int, positions: Tensor, context: Context, own_visible: Tensor
    ) -> SubLayer:
        def attention(x: Tensor) -> Tensor:
            window = self.hparams.body.layers[index].window
            mixed = self.attend(
                self.queries(index, x, positions),
                context.layers[index],
                context.visible_to(positions, window),
                self.keys_values(index, x, positions),
                own_visible,
                self.hparams.body.attention_scale,
            )
            return self.products(f"layers.{index}.self_attn.o_proj", mixed)

        return attention

    def _mlp(self, prefix: str) -> SubLayer:
        return lambda x: gated_mlp(self.products, prefix, x, self.hparams.body.activation)


class DFlashNet(BlockNet[DFlashHparams]):
    """DFlash as published: a row's draft does not depend on its neighbours' tokens."""
