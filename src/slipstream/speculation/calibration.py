"""Calibration of a drafter's confidence, and how good it is.

A drafter estimates for each draft position that it is accepted if those before it are. What a
scheduler needs is the probability that the whole prefix is accepted: the product up to there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ECE_BINS = 15
REPORT_BINS = 20
AUC_BINS = 1000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Result of sequential temperature scaling, by draft position.

    Attributes:
        temperatures: [drafts] divisors of the confidence logits.
        ece_before, ece_after: [drafts] expected calibration error of the prefix's probability,
            at temperature 1 and as fitted.
        survival: [samples, drafts] calibrated probability that the prefix is accepted.
    """

    temperatures: Floats
    ece_before: Floats
    ece_after: Floats
    survival: Floats


@dataclass(frozen=True, slots=True)
class ConfidenceQuality:
    """How well prefix probabilities agree with what happened, by draft position; each [drafts].

    Attributes:
        count: Samples that drafted so far.
        ece: Expected calibration error; auc: area under the ROC curve; brier: mean squared error.
        predicted, accepted: Means of the probabilities and of the outcomes.
    """

    count: Floats
    ece: Floats
    auc: Floats
    brier: Floats
    predicted: Floats
    accepted: Floats


def fit_sequential_temperatures(
    logits: Floats, prefix_accepted: Floats, grid: Floats
) -> Calibration:
    """Choose each position's temperature in turn, those before it fixed.

    Args:
        logits: [samples, drafts] confidence logits.
        prefix_accepted: [samples, drafts] 1 where the drafts up to there were accepted.
        grid: Temperatures to try; of equal ones the first is taken.
    Source: DSpark (arXiv:2607.05147), sequential temperature scaling.
    """
    num_drafts = logits.shape[1]
    survival: Floats = np.ones(len(logits))
    plain = np.cumprod(_sigmoid(logits), 1).astype(np.float64)
    chosen: list[float] = []
    after: list[float] = []
    columns: list[Floats] = []
    for position in range(num_drafts):
        truth = prefix_accepted[:, position]
        of_position = logits[:, position]
        tried = [np.multiply(survival, _sigmoid(of_position / float(t))) for t in grid]
        errors = [calibration_error(probs, truth, ECE_BINS) for probs in tried]
        best = int(np.argmin(errors))
        survival = tried[best]
        chosen.append(float(grid[best]))
        after.append(errors[best])
        columns.append(survival)
    before = [
        calibration_error(plain[:, position], prefix_accepted[:, position], ECE_BINS)
        for position in range(num_drafts)
    ]
    return Calibration(
        np.array(chosen), np.array(before), np.array(after), np.stack(columns, axis=1)
    )


def calibration_error(probs: Floats, truth: Floats, num_bins: int) -> float:
    """Expected calibration error over bins of equal width: [samples] each."""
    bins = np.minimum((probs * num_bins).astype(np.int64), num_bins - 1)
    predicted = np.bincount(bins, probs, num_bins)
    happened = np.bincount(bins, truth, num_bins)
    return float(np.abs(predicted - happened).sum() / max(len(probs), 1))


def confidence_quality(
    prefix_probs: Floats, prefix_accepted: Floats, lengths: npt.NDArray[np.int64]
) -> ConfidenceQuality:
    """Judge prefix probabilities.

    Args:
        prefix_probs, prefix_accepted: [samples, drafts]; what lies behind `lengths` is not read.
        lengths: [samples] drafts of each sample.
    """
    rows: list[tuple[float, ...]] = []
    for position in range(prefix_probs.shape[1]):
        is_there = lengths > position
        probs, truth = prefix_probs[is_there, position], prefix_accepted[is_there, position]
        count = max(len(probs), 1)
        rows.append(
            (
                float(len(probs)),
                calibration_error(probs, truth, REPORT_BINS),
                area_under_curve(probs, truth),
                float(((probs - truth) ** 2).sum() / count),
                float(probs.sum() / count),
                float(truth.sum() / count),
            )
        )
    return ConfidenceQuality(*(np.array(column) for column in zip(*rows, strict=True)))


def area_under_curve(probs: Floats, truth: Floats) -> float:
    """Probability that an accepted sample has the higher estimate; ties in a bin count half."""
    bins = np.minimum((probs * AUC_BINS).astype(np.int64), AUC_BINS - 1)
    accepted = np.bincount(bins, truth, AUC_BINS)
    rejected = np.bincount(bins, 1.0 - truth, AUC_BINS)
    pairs = accepted.sum() * rejected.sum()
    if pairs == 0.0:
        return float("nan")
    below = np.cumsum(rejected) - rejected
    return float((accepted * (below + 0.5 * rejected)).sum() / pairs)


def _sigmoid(logits: Floats) -> Floats:
    probs: Floats = 1.0 / (1.0 + np.exp(-logits))
    return probs
