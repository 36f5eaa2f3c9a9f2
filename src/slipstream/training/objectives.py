"""Which objective trains which family."""

from __future__ import annotations

from slipstream.training.block_objective import BlockObjective
from slipstream.training.eagle_objective import EagleObjective
from slipstream.training.nets import TrainedNet
from slipstream.training.objective import DraftIds, Objective
from slipstream.training.settings import RunSettings


def objective_of(
    settings: RunSettings, net: TrainedNet, num_anchors: int | None = None
) -> Objective:
    """The objective of a run.

    Args:
        num_anchors: Blocks of each pack, if not those of the settings.
    """
    ids = DraftIds(net.token_ids, net.hparams.body.vocab_size)
    losses, num_drafts = settings.losses, settings.net.max_draft_len
    count = num_anchors or settings.fit.num_anchors
    if settings.net.family == "eagle3":
        return EagleObjective(ids, losses, num_drafts, count)
    return BlockObjective(ids, losses, num_drafts, count, recomputes=settings.fit.recomputes)
