"""The loss of EAGLE-3: drafting is unrolled in training, each step reads the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.drafts.eagle3 import Eagle3Net, Eagle3Rows
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context, LayerKv
from slipstream.training.batch_blocks import AnchorRules, BlockLabels, choose_anchors, label_blocks
from slipstream.training.head_loss import HeadTargets, LossScales, head_loss
from slipstream.training.objective import Batch, DraftIds, Outcome, RowResults
from slipstream.training.packing import Packs
from slipstream.training.settings import LossSettings


@dataclass(frozen=True, slots=True)
class EagleBatch:
    """See `Batch`. A block is a place of a pack; its drafts are the steps.

    Attributes:
        places: [packs, blocks] int64 the row that starts a block: it knows the state at its own
            place and the token behind it, the block's anchor.
        labels: Of the blocks behind those anchors.
        weights: [packs, blocks, steps] float32.
    """

    packs: Packs
    places: Tensor
    labels: BlockLabels
    weights: Tensor

    @property
    def total_weight(self) -> float:
        """See `Batch`."""
        return float(self.weights.sum(dtype=torch.float64))


class EagleObjective:
    """See `Objective`. Step s weighs depth_decay^s.

    Every place of a pack has a row of step 0, but of the last layer only its keys and values. Each
    block begins with a row of that step and has one of its own in each later step. They see the
    rows of step 0 in front of its place and the block's earlier rows: what they would see when
    drafting. A row counts where the draft knows the target's likeliest token.

    Args:
        num_steps: Drafts that are unrolled.
        anchors: Fewer than a pack's tokens make a step cheaper.

    Source: arXiv:2503.01840.
    """

    def __init__(
        self, ids: DraftIds, losses: LossSettings, num_steps: int, anchors: AnchorRules
    ) -> None:
        self._ids = ids
        self._losses = losses
        self._num_steps = num_steps
        self._anchors = anchors
        self._decay = losses.depth_decay ** torch.arange(num_steps)

    def prepare(self, packs: Packs, seeds: Sequence[int]) -> EagleBatch:
        """See `Objective`."""
        anchors = choose_anchors(packs, self._anchors, seeds)
        labels = label_blocks(packs, anchors, self._num_steps)
        is_known = self._ids.of(labels.top_ids[..., 0]) >= 0
        return EagleBatch(
            packs=packs,
            places=(anchors.places - 1).clamp_min(0),
            labels=labels,
            weights=labels.is_valid * is_known * self._decay,
        )

    def measure(self, net: AnyDraftNet, batch: Batch, total_weight: float) -> Outcome:
        """See `Objective`."""
        assert isinstance(net, Eagle3Net)
        assert isinstance(batch, EagleBatch)
        scales = LossScales.of(self._losses)
        rows, context = _first_step(net, batch)
        earlier = list(rows.layers)
        normed = [rows.normed]
        for step in range(1, self._num_steps):
            rows = _next_step(net, batch, step, rows.hidden, context, earlier)
            earlier = _appended(earlier, rows.layers)
            normed.append(rows.normed)
        targets = self._targets(batch, total_weight)
        vocabulary = net.parameters["lm_head.weight"]
        head = head_loss([torch.cat(normed, 2).flatten(0, 2)], [vocabulary], targets, scales)
        shape = batch.labels.is_valid.flatten(0, 1).shape
        results = RowResults(
            acceptance=head.acceptance.view(shape),
            is_hit=(head.best == targets.labels).view(shape),
            is_valid=batch.labels.is_valid.flatten(0, 1),
        )
        return Outcome(head.loss, results)

    def _targets(self, batch: EagleBatch, total_weight: float) -> HeadTargets:
        labels = batch.labels
        return self._ids.targets(
            labels.labels.flatten(),
            labels.top_ids.flatten(0, 2),
            labels.top_probs.flatten(0, 2),
            batch.weights.flatten() / total_weight,
        )


def _first_step(net: Eagle3Net, batch: EagleBatch) -> tuple[Eagle3Rows, Context]:
    """The blocks' rows of step 0, [packs, blocks, 1, ...], and what all their rows see of it."""
    packs = batch.packs
    behind = torch.roll(packs.tokens, -1, 1)  # the last place of a document belongs to no block
    fused = net.fuse(packs.taps)
    rows = torch.arange(len(behind)).unsqueeze(1)
    is_own = packs.documents.unsqueeze(1) == packs.documents.unsqueeze(2)
    is_in_front = torch.arange(behind.shape[1]) < batch.places.unsqueeze(-1)
    context = Context(
        net.keep(behind, fused, packs.positions, is_own.tril()),
        packs.positions,
        batch.labels.context & is_in_front,
    )
    first = net.extend(
        behind[rows, batch.places].unsqueeze(-1),
        fused[rows, batch.places].unsqueeze(2),
        packs.positions[rows, batch.places].unsqueeze(-1),
        context,
        (),
        torch.ones(1, 1, dtype=torch.bool),
    )
    return first, context


def _next_step(
    net: Eagle3Net,
    batch: EagleBatch,
    step: int,
    hidden: Tensor,
    context: Context,
    earlier: Sequence[LayerKv],
) -> Eagle3Rows:
    """Rows of the step that reads the token `step` places behind the anchor.

    Args:
        hidden: Of the step before.
    """
    return net.extend(
        batch.labels.previous[..., step : step + 1],
        hidden,
        (batch.labels.starts + step - 1).unsqueeze(-1),
        context,
        earlier,
        torch.ones(1, step + 1, dtype=torch.bool),
    )


def _appended(earlier: Sequence[LayerKv], rows: Sequence[LayerKv]) -> list[LayerKv]:
    return [
        LayerKv(torch.cat((old.keys, new.keys), 2), torch.cat((old.values, new.values), 2))
        for old, new in zip(earlier, rows, strict=True)
    ]
