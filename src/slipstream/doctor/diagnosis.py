"""What acceptance says about a drafter: it is fine, it is read the wrong way, or it does not fit.

A checkpoint that is read by a wrong convention still drafts, and almost nothing is accepted: a
mean acceptance length of 1.0 to 1.5 where 2 to 6 were published. So each other convention is tried
on the very same drafts, and one that is much better is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.doctor.conventions import Convention
from slipstream.doctor.findings import Finding
from slipstream.doctor.forced import ForcedText, Reading, greedy_hits
from slipstream.models.drafts.hparams import DFlashHparams
from slipstream.models.drafts.load import AnyDraftNet

_MIN_BLOCKS, _MAX_BLOCKS = 24, 192
_NEAR_ONE = 1.15
_MIN_GAIN = 0.15  # tokens per pass that another convention must bring at least
_MIN_RATIO = 1.4  # and how many times the accepted drafts
_MIN_ERRORS = 4.0  # and how many standard errors; blocks of one text are not independent


@dataclass(frozen=True, slots=True)
class ConventionResult:
    """One convention, measured on the same drafts as the drafter as it is read.

    Attributes:
        length: Mean acceptance length.
        first_share: Share of blocks whose first draft is right.
        base_length: The drafter's as it is read, over as many depths.
        num_errors: The difference in standard errors.
    """

    name: str
    remedy: str
    length: float
    first_share: float
    base_length: float
    num_errors: float

    @property
    def is_suspect(self) -> bool:
        """Whether it is so much better that it must be what was meant."""
        gain = self.length - self.base_length
        ratio = (self.length - 1.0) / max(self.base_length - 1.0, 1e-9)
        return gain >= _MIN_GAIN and ratio >= _MIN_RATIO and self.num_errors >= _MIN_ERRORS


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Teacher-forced acceptance of one drafter.

    Attributes:
        num_blocks: Drafts measured, one from every place of the texts.
        length: Mean acceptance length as the drafter is read, bonus included.
        shares: By depth, share of blocks whose drafts up to there are all right.
        known_share: Share of the texts' tokens that the drafter's vocabulary has.
        conventions: All that were tried, the best first.
    """

    num_blocks: int
    length: float
    shares: tuple[float, ...]
    known_share: float
    conventions: tuple[ConventionResult, ...]

    @property
    def suspect(self) -> ConventionResult | None:
        """The convention that the drafter should have been read by, if one stands out."""
        return next((item for item in self.conventions if item.is_suspect), None)


def diagnose(
    net: AnyDraftNet,
    texts: Sequence[ForcedText],
    num_drafts: int,
    conventions: Sequence[Convention],
    on_measured: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Measure a drafter as it is read, and by each other convention.

    Args:
        texts: With the states of all layers that any convention reads.
        num_drafts: Depths that are measured, if a block has as many.
        on_measured: Told each convention's name before it is measured.
    """
    num_drafts = min(num_drafts, _max_drafts(net, num_drafts))
    anchors = _spread(texts, num_drafts)
    base = _hits(Reading(net), texts, anchors, num_drafts)
    kept = base.cumprod(-1)
    results = []
    for convention in conventions:
        on_measured(convention.name)
        reading = convention.reading()
        depth = min(num_drafts, _max_drafts(reading.net, num_drafts))
        hits = _hits(reading, texts, anchors, depth)
        results.append(_compare(convention, hits, kept[:, :depth]))
    results.sort(key=lambda item: item.length - item.base_length, reverse=True)
    return Diagnosis(
        num_blocks=len(kept),
        length=1.0 + float(kept.sum()) / max(len(kept), 1),
        shares=tuple(float(share) for share in kept.mean(0)) if len(kept) else (),
        known_share=_known_share(net, texts),
        conventions=tuple(results),
    )


def judge(check: str, diagnosis: Diagnosis) -> Finding:
    """The verdict in words."""
    told = (
        f"mean acceptance length {diagnosis.length:.2f}, teacher-forced over "
        f"{diagnosis.num_blocks} drafts of greedy answers; by depth "
        f"{' '.join(f'{share:.2f}' for share in diagnosis.shares)}"
    )
    if diagnosis.num_blocks < _MIN_BLOCKS:
        return Finding(
            check,
            "warning",
            f"the target's answers are too short to judge by: {diagnosis.num_blocks} drafts",
            "give longer ones with --prompts or --max-tokens",
        )
    suspect = diagnosis.suspect
    if suspect is not None:
        return Finding(
            check,
            "wrong",
            f"{told}. Read with {suspect.name} it is {suspect.length:.2f}: this is how it was "
            "trained",
            suspect.remedy,
        )
    if diagnosis.length < _NEAR_ONE:
        best = diagnosis.conventions[0] if diagnosis.conventions else None
        tried = "" if best is None else f"; the best of the others, {best.name}: {best.length:.2f}"
        return Finding(
            check,
            "wrong",
            f"{told}. No convention that is known does better{tried}",
            "it was made for another target or for other weights of it, or it is not trained: use "
            "one that was trained for this target, or train one with `slipstream train`",
        )
    if diagnosis.known_share < 0.5:
        return Finding(
            check,
            "warning",
            f"{told}. Its vocabulary has only {diagnosis.known_share:.0%} of the tokens that the "
            "target writes",
            "its vocabulary was chosen from other texts than yours: train one on prompts like "
            "those of your users",
        )
    return Finding(check, "ok", told)


def _compare(convention: Convention, hits: Tensor, base_kept: Tensor) -> ConventionResult:
    kept = hits.cumprod(-1)
    difference = kept.sum(-1) - base_kept.sum(-1)
    count = max(len(difference), 1)
    error = float(difference.std()) / math.sqrt(count) if count > 1 else 0.0
    gain = float(difference.sum()) / count
    return ConventionResult(
        name=convention.name,
        remedy=convention.remedy,
        length=1.0 + float(kept.sum()) / count,
        first_share=float(hits[:, 0].sum()) / count,
        base_length=1.0 + float(base_kept.sum()) / count,
        num_errors=gain / error if error else 0.0,
    )


def _spread(texts: Sequence[ForcedText], num_drafts: int) -> list[Tensor]:
    """Anchors by text, evenly spaced, few enough that a slow machine is done in a minute."""
    every = [text.anchors(num_drafts) for text in texts]
    stride = max(1, -(-sum(map(len, every)) // _MAX_BLOCKS))
    return [places[::stride] for places in every]


def _hits(
    reading: Reading, texts: Sequence[ForcedText], anchors: Sequence[Tensor], num_drafts: int
) -> Tensor:
    """[blocks, drafts] float64 over all texts."""
    found = [
        greedy_hits(reading, text, places, num_drafts)
        for text, places in zip(texts, anchors, strict=True)
        if len(places)
    ]
    return torch.cat(found).double() if found else torch.zeros(0, num_drafts, dtype=torch.float64)


def _max_drafts(net: AnyDraftNet, otherwise: int) -> int:
    hparams = net.hparams
    return hparams.max_draft_len if isinstance(hparams, DFlashHparams) else otherwise


def _known_share(net: AnyDraftNet, texts: Sequence[ForcedText]) -> float:
    written = torch.cat([text.tokens[text.answer_at :] for text in texts])
    known = torch.isin(written, net.target_token_ids())
    return float(known.double().mean()) if len(written) else 1.0
