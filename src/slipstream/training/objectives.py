"""Which objective trains which family."""

from __future__ import annotations

from slipstream.training.batch_blocks import AnchorRules
from slipstream.training.block_objective import BlockObjective
from slipstream.training.eagle_objective import EagleObjective
from slipstream.training.nets import TrainedNet
from slipstream.training.objective import DraftIds, Objective
from slipstream.training.settings import RunSettings


def objective_of(settings: RunSettings, net: TrainedNet) -> Objective:
    """The objective of a run."""
    ids = DraftIds(net.token_ids, net.hparams.body.vocab_size)
    losses, num_drafts = settings.losses, settings.net.max_draft_len
    anchors = AnchorRules(settings.fit.num_anchors, settings.fit.repeat_weight)
    if settings.net.family in ("eagle3", "mtp"):
        return EagleObjective(ids, losses, num_drafts, anchors)
    return BlockObjective(ids, losses, num_drafts, anchors, recomputes=settings.fit.recomputes)
