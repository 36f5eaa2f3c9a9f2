"""A multi-token-prediction head as it is trained; `models.mtp` is what serves it."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.hparams import Eagle3Hparams

TARGET_NORM = "target_norm.weight"
"""The target's final norm: a constant, which is not stored."""


class MtpNet(Eagle3Net):
    """Rows as those of `Eagle3Net`, but one state and one token enter a layer of usual width.

    What is known behind a token is the target's last state behind its final norm, or the head's own
    output behind its final norm.

    Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2.
    """

    @classmethod
    def parameter_shapes(cls, hparams: Eagle3Hparams) -> dict[str, tuple[int, ...]]:
        """See `DraftNet`."""
        shapes = super().parameter_shapes(hparams)
        hidden = hparams.body.hidden_size
        del shapes["layers.0.hidden_norm.weight"]
        shapes["fc.weight"] = (hidden, 2 * hidden)
        names = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", TARGET_NORM)
        return shapes | dict.fromkeys(names, (hidden,))

    @classmethod
    def _layer_width(cls, hparams: Eagle3Hparams, index: int) -> int:
        return hparams.body.hidden_size

    def fuse(self, taps: Tensor) -> Tensor:
        """The target's last layer's output, [..., hidden], behind the final norm."""
        return self.norm(TARGET_NORM.removesuffix(".weight"), taps)

    def _entered(self, index: int, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if index == 0:
            embedded = self.norm("pre_fc_norm_embedding", self.embed(tokens))
            x = self.products("fc", torch.cat((embedded, self.norm("pre_fc_norm_hidden", x)), -1))
        return x, self.norm(f"layers.{index}.input_layernorm", x)
