"""What a draft net starts from: what is measured and known before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.models.drafts.parts import StoredEnds
from slipstream.training.answers import Answer


@dataclass(frozen=True, slots=True)
class FixedParts:
    """What is measured before a training and stays.

    Attributes:
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens, ascending.
        tap_scales: [taps * hidden] float32, see `tap_scales_of`.
    """

    token_ids: Tensor
    tap_scales: Tensor


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a block drafter's start is taken from.

    Attributes:
        answers: All that is trained on.
        taps: [places, taps * hidden] of some of it.
    """

    answers: Sequence[Answer]
    taps: Tensor


@dataclass(frozen=True, slots=True)
class Start:
    """All that a family may set a net's first weights from.

    Attributes:
        final_norm: [hidden] float32 of the target's final norm.
        ends: The target's embeddings and head.
        lessons: None is nothing.
    """

    final_norm: Tensor
    ends: StoredEnds
    fixed: FixedParts
    lessons: Lessons | None = None
