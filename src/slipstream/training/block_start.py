"""What a block drafter knows before its training: from a look at the answers, not from steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DFlashHparams, DSparkHparams
from slipstream.models.drafts.parts import StoredEnds, rms_norm
from slipstream.training.answers import Answer
from slipstream.training.attention_start import Seen, look_at_nearest
from slipstream.training.markov_start import markov_start
from slipstream.training.objective import DraftIds

_MAX_PLACES = 16384
_NORM_SHARE = 1 / 3  # of the usual start: rows that know nothing yet leave it to what was counted


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a start is taken from.

    Attributes:
        answers: All that is trained on.
        taps: [places, taps * hidden] of some of it.
    """

    answers: Sequence[Answer]
    taps: Tensor


def start_block_net(
    parameters: Mapping[str, Tensor],
    hparams: DFlashHparams,
    ends: StoredEnds,
    token_ids: Tensor,
    lessons: Lessons,
) -> None:
    """Set attention, Markov head and final norm in place.

    Args:
        parameters: As the net reads them; `fc.weight` is for taps as they are.
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens.
    """
    body = hparams.body
    taps = lessons.taps[:_MAX_PLACES].float()
    anchors = torch.tensor([token for item in lessons.answers for token in item.response_ids])
    unit = torch.ones(body.hidden_size)
    seen = Seen(
        features=rms_norm(taps @ parameters["fc.weight"].T, unit, body.norm_eps),
        anchors=rms_norm(ends.embed(anchors[:_MAX_PLACES]), unit, body.norm_eps),
        mask=rms_norm(ends.embed(torch.tensor(hparams.mask_token_id)), unit, body.norm_eps),
    )
    look_at_nearest(parameters, body, seen)
    if isinstance(hparams, DSparkHparams) and hparams.markov_kind == "vanilla":
        ids = DraftIds(token_ids, body.vocab_size)
        first, second = markov_start(lessons.answers, ids, hparams.markov_rank)
        parameters["markov_head.markov_w1.weight"].copy_(first)
        parameters["markov_head.markov_w2.weight"].copy_(second)
        parameters["norm.weight"].mul_(_NORM_SHARE)
