"""The loss of EAGLE-3: drafting is unrolled in training, each step reads the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.drafts.eagle3 import Eagle3Net, Eagle3Rows
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context, LayerKv, empty_context
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
        visible: [packs, len, len] bool which rows a row of step 0 sees.
        weights: [packs, blocks, steps] float32.
    """

    packs: Packs
    places: Tensor
    labels: BlockLabels
    visible: Tensor
    weights: Tensor

    @property
    def total_weight(self) -> float:
        """See `Batch`."""
        return float(self.weights.sum(dtype=torch.float64))


class EagleObjective:
    """See `Objective`. Step s weighs depth_decay^s.

    Step 0 is a causal pass over whole packs. In a later step each block is a row of its own, which
    sees the rows of step 0 up to its place and its own rows of the steps between: what it would
    see when drafting. A row counts where the draft knows the target's likeliest token.

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
        documents = packs.documents
        is_same = documents.unsqueeze(1) == documents.unsqueeze(2)
        return EagleBatch(
            packs=packs,
            places=(anchors.places - 1).clamp_min(0),
            labels=labels,
            visible=is_same.tril(),
            weights=labels.is_valid * is_known * self._decay,
        )

    def measure(self, net: AnyDraftNet, batch: Batch, total_weight: float) -> Outcome:
        """See `Objective`."""
        assert isinstance(net, Eagle3Net)
        assert isinstance(batch, EagleBatch)
        first = _first_step(net, batch)
        scales = LossScales(self._losses.label, self._losses.soft, self._losses.distance)
        rows, context = _start(first, batch)
        earlier: list[LayerKv] = []
        normed = [rows.normed]
        for step in range(1, self._num_steps):
            rows = _next_step(net, batch, step, rows, context, earlier)
            earlier = _appended(earlier, rows.layers)
            normed.append(rows.normed)
        targets = self._targets(batch, total_weight)
        vocabulary = net.parameters["lm_head.weight"]
        head = head_loss([torch.cat(normed, 2).flatten(0, 2)], [vocabulary], targets, scales)
        shape = batch.labels.is_valid.flatten(0, 1).shape
        results = RowResults(
            overlap=head.overlap.view(shape),
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


def _first_step(net: Eagle3Net, batch: EagleBatch) -> Eagle3Rows:
    packs = batch.packs
    behind = torch.roll(packs.tokens, -1, 1)  # the last place of a document belongs to no block
    return net.extend(
        behind.unsqueeze(1),
        net.fuse(packs.taps).unsqueeze(1),
        packs.positions.unsqueeze(1),
        empty_context(net.hparams.body, len(behind), 1),
        (),
        batch.visible.unsqueeze(1),
    )


def _start(first: Eagle3Rows, batch: EagleBatch) -> tuple[Eagle3Rows, Context]:
    """The blocks' rows of step 0, [packs, blocks, 1, ...], and what later steps see of it."""
    packs = torch.arange(len(batch.places)).unsqueeze(1)
    rows = Eagle3Rows(
        first.hidden[:, 0][packs, batch.places].unsqueeze(2),
        first.normed[:, 0][packs, batch.places].unsqueeze(2),
        (),
    )
    context = Context(
        [LayerKv(layer.keys[:, 0], layer.values[:, 0]) for layer in first.layers],
        batch.packs.positions,
        batch.visible[packs, batch.places],
    )
    return rows, context


def _next_step(
    net: Eagle3Net,
    batch: EagleBatch,
    step: int,
    rows: Eagle3Rows,
    context: Context,
    earlier: Sequence[LayerKv],
) -> Eagle3Rows:
    """Rows of the step that reads the token `step` places behind the anchor."""
    return net.extend(
        batch.labels.previous[..., step : step + 1],
        rows.hidden,
        (batch.labels.starts + step - 1).unsqueeze(-1),
        context,
        earlier,
        torch.ones(1, step, dtype=torch.bool),
    )


def _appended(earlier: Sequence[LayerKv], rows: Sequence[LayerKv]) -> list[LayerKv]:
    if not earlier:
        return list(rows)
    return [
        LayerKv(torch.cat((old.keys, new.keys), 2), torch.cat((old.values, new.values), 2))
        for old, new in zip(earlier, rows, strict=True)
    ]
