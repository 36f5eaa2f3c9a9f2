"""DFlash 2: what it changes in DFlash."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.models.drafts.dflash import BlockNet, Choices, SubLayer
from slipstream.models.drafts.hparams import DFlash2Hparams

NUM_SIDES = 2  # before and after the sub-layer


class DFlash2Net(BlockNet[DFlash2Hparams]):
    """DFlash with convolutions inside the block and a selector of paths.

    A convolution before and one after every sub-layer let a row see its neighbours in front;
    their coefficients are learned plus what the sub-layer's input adds. The selector adds to a
    row's logits how well a candidate follows the token in front of it; a row proposes only its
    best candidates.

    Source: inco.ai's DFlash 2 as read by NVIDIA NeMo and vLLM.
    """

    @classmethod
    def parameter_shapes(cls, hparams: DFlash2Hparams) -> dict[str, tuple[int, ...]]:
        """See `DraftNet`."""
        hidden, rank = hparams.body.hidden_size, hparams.selector_rank
        length = hparams.conv_kernel_len
        shapes = super().parameter_shapes(hparams)
        for index in range(hparams.body.num_layers):
            for name in ("attention_conv", "mlp_conv"):
                num_dynamic = NUM_SIDES * length * hidden // hparams.conv_group_size
                prefix = f"layers.{index}.{name}"
                shapes[f"{prefix}.base_kernel"] = (NUM_SIDES, length, hidden)
                shapes[f"{prefix}.kernel_projection.weight"] = (num_dynamic, hidden)
        selector = "candidate_selector"
        shapes[f"{selector}.predecessor_codebook"] = (hparams.body.vocab_size, rank)
        shapes[f"{selector}.successor_codebook"] = (hparams.draft_vocab_size, rank)
        shapes[f"{selector}.hidden_projection.weight"] = (rank, hidden)
        return shapes

    def choices(
        self, hidden: Tensor, logits: Tensor, previous: Tensor, state: Tensor | None = None
    ) -> Choices:
        """The row's best candidates, scored behind `previous`. See `BlockNet`."""
        prefix = "candidate_selector"
        best = logits.topk(min(self.hparams.selector_top_k, logits.shape[-1]))
        predecessor = functional.embedding(
            previous, self.parameters[f"{prefix}.predecessor_codebook"]
        ).float()
        successors = functional.embedding(
            best.indices, self.parameters[f"{prefix}.successor_codebook"]
        ).float()
        query = predecessor * self.products(f"{prefix}.hidden_projection", hidden)
        scores = best.values + torch.einsum("...r,...kr->...k", query, successors)
        return Choices(self.target_token_ids()[best.indices], scores)

    def kernels(self, name: str, normed: Tensor) -> Tensor:
        """Coefficients of the two convolutions `name` around a sub-layer.

        Args:
            normed: [..., rows, hidden] the sub-layer's input.
        Returns: [..., rows, sides, taps, hidden]; tap t reads the row t places in front.
        """
        group, hidden = self.hparams.conv_group_size, self.hparams.body.hidden_size
        shape = (NUM_SIDES, self.hparams.conv_kernel_len, hidden // group)
        dynamic = self.products(f"{name}.kernel_projection", normed)
        dynamic = dynamic.view(*normed.shape[:-1], *shape)
        base = self.parameters[f"{name}.base_kernel"].float()
        return base + dynamic.repeat_interleave(group, -1)

    def _around(self, name: str, normed: Tensor, sub_layer: SubLayer) -> Tensor:
        kernels = self.kernels(name, normed)
        output = sub_layer(convolve(normed, kernels[..., 0, :, :]))
        return convolve(output, kernels[..., 1, :, :])


def convolve(x: Tensor, kernels: Tensor) -> Tensor:
    """Mix each row with those in front of it, channel by channel; before the first are zeros.

    Args:
        x: [..., rows, hidden] of whole blocks; kernels: [..., rows, taps, hidden].
    """
    num_rows, num_taps = kernels.shape[-3], kernels.shape[-2]
    padded = functional.pad(x, (0, 0, num_taps - 1, 0))
    shifted = [
        padded[..., num_taps - 1 - tap : num_taps - 1 - tap + num_rows, :]
        for tap in range(num_taps)
    ]
    return (torch.stack(shifted, -2) * kernels).sum(-2)
