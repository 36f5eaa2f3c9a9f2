"""Losses of the block drafters: DFlash, DFlash 2 and DSpark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.dflash2 import DFlash2Net
from slipstream.models.drafts.dspark import DSparkNet
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context
from slipstream.training.batch_blocks import AnchorRules, BlockLabels, choose_anchors, label_blocks
from slipstream.training.head_loss import HeadLoss, HeadTargets, LossScales, head_loss
from slipstream.training.objective import Batch, DraftIds, Outcome, RowResults
from slipstream.training.packing import Packs
from slipstream.training.settings import LossSettings

AnyBlockNet = BlockNet[Any]  # Any: the family's hyperparameters


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """See `Batch`.

    Attributes:
        weights: [packs, anchors, drafts] float32; 0 where the answer has ended.
    """

    packs: Packs
    labels: BlockLabels
    weights: Tensor

    @property
    def total_weight(self) -> float:
        """See `Batch`."""
        return float(self.weights.sum(dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Draft rows that have a label, one below the other."""

    hidden: Tensor  # [rows, hidden]
    previous: Tensor  # [rows] int64
    targets: HeadTargets


class BlockObjective:
    """See `Objective`. Rows deeper in a block weigh less: exp(-depth / decay).

    Args:
        ids: The draft's vocabulary.
        losses: Scales of the parts.
        num_drafts: Drafts of a block.
        anchors: Where blocks start.
        recomputes: Whether layers are computed again in the backward pass to save memory.

    Source: arXiv:2602.06036 (DFlash), arXiv:2607.05147 (DSpark), NVIDIA NeMo (DFlash 2).
    """

    def __init__(
        self,
        ids: DraftIds,
        losses: LossSettings,
        num_drafts: int,
        anchors: AnchorRules,
        *,
        recomputes: bool,
    ) -> None:
        self._ids = ids
        self._losses = losses
        self._anchors = anchors
        self._recomputes = recomputes
        self._decay = torch.exp(-torch.arange(num_drafts) / losses.depth_decay)
        self._num_drafts = num_drafts

    def prepare(self, packs: Packs, seeds: Sequence[int]) -> BlockBatch:
        """See `Objective`."""
        anchors = choose_anchors(packs, self._anchors, seeds)
        labels = label_blocks(packs, anchors, self._num_drafts)
        return BlockBatch(packs, labels, labels.is_valid * self._decay)

    def measure(self, net: AnyDraftNet, batch: Batch, total_weight: float) -> Outcome:
        """See `Objective`."""
        assert isinstance(net, BlockNet)
        assert isinstance(batch, BlockBatch)
        labels = batch.labels
        is_valid = labels.is_valid
        hidden = self._draft_hidden(net, batch)
        targets = self._ids.targets(
            labels.labels[is_valid],
            labels.top_ids[is_valid],
            labels.top_probs[is_valid],
            batch.weights[is_valid] / total_weight,
        )
        rows = _Rows(hidden[is_valid], labels.previous[is_valid], targets)
        confidence: Tensor | None = None
        if isinstance(net, DSparkNet):
            head = self._dspark_head(net, hidden, labels, rows)
            confidence = net.confidence_logits(rows.hidden, rows.previous)
        else:
            head = head_loss(
                [rows.hidden], [_vocabulary(net)], targets, LossScales.of(self._losses)
            )
        loss = head.loss
        if isinstance(net, DFlash2Net):
            selected = self._selector_loss(net, rows)
            loss = loss + self._losses.selector * selected
        if confidence is not None:
            wrong = functional.binary_cross_entropy_with_logits(
                confidence, head.acceptance, reduction="none"
            )
            loss = loss + self._losses.confidence * (wrong * targets.weights).sum()
        return Outcome(loss, _results(head, targets, is_valid, confidence))

    def _draft_hidden(self, net: AnyBlockNet, batch: BlockBatch) -> Tensor:
        """[packs, anchors, drafts, hidden] behind the final norm."""
        labels, packs = batch.labels, batch.packs
        num_rows = net.hparams.first_draft_row + self._num_drafts
        features = net.context_features(packs.taps)
        layers = net.context_kv(features, packs.positions)
        context = Context(layers, packs.positions, labels.context)
        tokens = net.block_tokens(labels.anchors, num_rows)
        positions = labels.starts.unsqueeze(-1) + torch.arange(num_rows)
        if self._recomputes:
            block = checkpoint(net.block_hidden, tokens, positions, context, use_reentrant=False)
        else:
            block = net.block_hidden(tokens, positions, context)
        assert isinstance(block, Tensor)
        return net.draft_rows(block)

    def _dspark_head(
        self, net: DSparkNet, hidden: Tensor, labels: BlockLabels, rows: _Rows
    ) -> HeadLoss:
        inputs, matrices = [rows.hidden], [_vocabulary(net)]
        if net.hparams.markov_kind is not None:
            embedded = _markov_inputs(net, hidden, labels.previous)
            inputs.append(embedded[labels.is_valid])
            matrices.append(net.parameters["markov_head.markov_w2.weight"])
        return head_loss(inputs, matrices, rows.targets, LossScales.of(self._losses))

    def _selector_loss(self, net: DFlash2Net, rows: _Rows) -> Tensor:
        """Cross entropy among a row's candidates, where the true token is one of them."""
        choices = net.choices(rows.hidden, net.logits(rows.hidden), rows.previous)
        candidates = self._ids.of(choices.token_ids)
        is_true = candidates == rows.targets.labels.unsqueeze(-1)
        has_true = is_true.any(-1)
        wrong = functional.cross_entropy(choices.logits, is_true.int().argmax(-1), reduction="none")
        return (wrong * has_true * rows.targets.weights).sum()


def _markov_inputs(net: DSparkNet, hidden: Tensor, previous: Tensor) -> Tensor:
    """[packs, anchors, drafts, rank] what the Markov head's last matrix reads."""
    if net.hparams.markov_kind != "rnn":
        return net.markov_inputs(hidden, previous)[0]
    state: Tensor | None = None
    outputs = []
    for depth in range(hidden.shape[2]):
        output, state = net.markov_inputs(hidden[:, :, depth], previous[:, :, depth], state)
        outputs.append(output)
    return torch.stack(outputs, 2)


def _vocabulary(net: AnyBlockNet) -> Tensor:
    """[draft_vocab, hidden] the head's matrix."""
    return net.parameters["lm_head.weight"]


def _results(
    head: HeadLoss, targets: HeadTargets, is_valid: Tensor, confidence: Tensor | None
) -> RowResults:
    shape = is_valid.flatten(0, 1).shape
    where = is_valid.view(shape)

    def spread(values: Tensor) -> Tensor:
        whole = torch.zeros(shape, dtype=values.dtype)
        whole[where] = values
        return whole

    return RowResults(
        acceptance=spread(head.acceptance),
        is_hit=spread(head.best == targets.labels),
        is_valid=where,
        confidence=None if confidence is None else spread(confidence.detach()),
    )
