"""How a trained net does on answers that are held out: by category and temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from slipstream.training.acceptance import AcceptanceTally
from slipstream.training.answers import Answer
from slipstream.training.nets import TrainedNet
from slipstream.training.objective import Objective, RowResults
from slipstream.training.packing import arrange, build_packs, cut_answers
from slipstream.training.settings import FitSettings
from slipstream.training.sources import FeatureSource


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One group of answers.

    Attributes:
        label: Category, or "all", and the temperature at which its answers were drawn.
        num_answers: How many.
        num_blocks: Drafts measured.
        sampled_length: Mean acceptance length at temperature 1.
        greedy_length: The same of greedy drafts along the answers; that of greedy serving where
            the answers are greedy.
        sampled_shares, greedy_shares: By depth, share of drafts accepted up to there.
    """

    label: str
    num_answers: int
    num_blocks: int
    sampled_length: float
    greedy_length: float
    sampled_shares: tuple[float, ...]
    greedy_shares: tuple[float, ...]


def evaluate(
    net: TrainedNet,
    objective: Objective,
    settings: FitSettings,
    source: FeatureSource,
    answers: Sequence[Answer],
    indices: Sequence[int],
    num_drafts: int,
) -> list[EvaluationRow]:
    """Measure groups of answers, teacher-forced: drafts start everywhere along them.

    Args:
        indices: Which answers.
    Returns: All greedy and all sampled answers, then each category with both.
    """
    groups: dict[str, list[int]] = {}
    for index in indices:
        kind = "T = 0" if answers[index].temperature == 0 else "T > 0"
        groups.setdefault(f"all, {kind}", []).append(index)
    for index in indices:
        groups.setdefault(answers[index].category or "none", []).append(index)
    rows = []
    for label, members in groups.items():
        tally = AcceptanceTally.empty(num_drafts)
        for results in measured(net, objective, settings, source, answers, members):
            tally.add(results)
        if tally.num_blocks:
            rows.append(_row(label, len(members), tally))
    return rows


def measured(
    net: TrainedNet,
    objective: Objective,
    settings: FitSettings,
    source: FeatureSource,
    answers: Sequence[Answer],
    indices: Sequence[int],
) -> Iterator[RowResults]:
    """Results of every pass over some answers, without gradients."""
    pieces = cut_answers(answers, indices, settings.pack_len)
    packs = arrange(pieces, settings.pack_len, 0)
    dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
    with torch.no_grad():
        running = net.copy_in(dtype)
        for start in range(0, len(packs), settings.pass_packs):
            some = packs[start : start + settings.pass_packs]
            features = [source.features([piece.index for piece in pack]) for pack in some]
            built = build_packs(some, answers, features, settings.pack_len)
            batch = objective.prepare(built, range(start, start + len(some)))
            yield objective.measure(running, batch, 1.0).results


def _row(label: str, num_answers: int, tally: AcceptanceTally) -> EvaluationRow:
    return EvaluationRow(
        label=label,
        num_answers=num_answers,
        num_blocks=tally.num_blocks,
        sampled_length=tally.sampled_length(),
        greedy_length=tally.greedy_length(),
        sampled_shares=tuple(tally.shares(tally.sampled)),
        greedy_shares=tuple(tally.shares(tally.greedy)),
    )
