"""What a block drafter knows before its training: from a look at the answers, not from steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DFlashHparams, DSparkHparams
from slipstream.models.drafts.parts import StoredEnds, rms_norm
from slipstream.training.answers import Answer
from slipstream.training.attention_start import Seen, look_at_nearest
from slipstream.training.markov_start import markov_start
from slipstream.training.objective import DraftIds
from slipstream.training.start import Lessons

_MAX_PLACES = 16384
_NORM_SHARE = 1 / 3  # of the usual start: rows that know nothing yet leave it to what was counted


def start_attention(
    parameters: Mapping[str, Tensor],
    hparams: DFlashHparams,
    ends: StoredEnds,
    lessons: Lessons,
) -> None:
    """Set attention in place.

    Args:
        parameters: As the net reads them; `fc.weight` is for taps as they are.
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


def start_markov_head(
    parameters: Mapping[str, Tensor],
    hparams: DSparkHparams,
    token_ids: Tensor,
    answers: Sequence[Answer],
) -> None:
    """Set a vanilla Markov head, and the final norm behind which it is added, in place.

    Args:
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens.
    """
    ids = DraftIds(token_ids, hparams.body.vocab_size)
    first, second = markov_start(answers, ids, hparams.markov_rank)
    parameters["markov_head.markov_w1.weight"].copy_(first)
    parameters["markov_head.markov_w2.weight"].copy_(second)
    parameters["norm.weight"].mul_(_NORM_SHARE)
