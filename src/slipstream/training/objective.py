"""What training a draft net minimises: the seam between the loop and the families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.models.drafts.load import AnyDraftNet
from slipstream.training.head_loss import HeadTargets
from slipstream.training.packing import Packs


@dataclass(frozen=True, slots=True)
class RowResults:
    """How rows did, by block and depth; places without a label are not valid.

    Attributes:
        acceptance: [blocks, drafts] float32 probability that the draft is accepted at temperature
            1, drafted with the noise that the target draws with.
        is_hit: [blocks, drafts] bool whether the draft's likeliest token is the true one.
        is_valid: [blocks, drafts] bool.
        confidence: [blocks, drafts] float32 the net's own estimate as a logit; None without one.
    """

    acceptance: Tensor
    is_hit: Tensor
    is_valid: Tensor
    confidence: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Attributes:
    loss: [] float32 sum of weighted losses; differentiable.
    results: For acceptance.
    """

    loss: Tensor
    results: RowResults


class Batch(Protocol):
    """Packs with what a family draws from them; made before a pass, without the net."""

    @property
    def total_weight(self) -> float:
        """Sum of the weights of all rows."""


class Objective(Protocol):
    """A family's loss."""

    def prepare(self, packs: Packs, seeds: Sequence[int]) -> Batch:
        """Draw what is random in each pack, from its seed alone."""

    def measure(self, net: AnyDraftNet, batch: Batch, total_weight: float) -> Outcome:
        """The batch's share of the loss of a step.

        Args:
            total_weight: Of all batches of the step; rows weigh their weight divided by it.
        """


class DraftIds:
    """From the target's token ids to those of a draft's vocabulary.

    Args:
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens; None if it knows
            all.
        vocab_size: The target's.

    Attributes:
        size, target_size: Tokens of the draft's and of the target's vocabulary.
    """

    def __init__(self, token_ids: Tensor | None, vocab_size: int) -> None:
        self._map = torch.full((vocab_size,), -1)
        known = torch.arange(vocab_size) if token_ids is None else token_ids
        self._map[known] = torch.arange(len(known))
        self.size, self.target_size = len(known), vocab_size

    def of(self, target_ids: Tensor) -> Tensor:
        """[...] int64, -1 included -> [...] int64, -1 where the draft lacks the token."""
        return torch.where(target_ids >= 0, self._map[target_ids.clamp_min(0)], -1)

    def targets(
        self, labels: Tensor, top_ids: Tensor, top_probs: Tensor, weights: Tensor
    ) -> HeadTargets:
        """What rows should predict, given in the target's ids."""
        return HeadTargets(self.of(labels), self.of(top_ids), top_probs, weights)
