"""Paired ratios with bootstrap intervals, and a measure of repetition.

A unit is a prompt, or a group of prompts that ran together, with all its samplings and rounds.
Both modes ran every unit, so units are resampled whole and the difference between prompts cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
MIN_UNITS = 5
"""Fewer units than this give no interval: the bootstrap of so few is far too narrow."""

REPETITIVE_BELOW = 0.5
REPETITION_MIN_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its percentile-bootstrap interval of `CONFIDENCE`.

    Attributes:
        low, high: None where there are fewer than `MIN_UNITS` units.
    """

    value: float
    low: float | None
    high: float | None
    num_units: int

    def is_above(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > bound

    def is_below(self, bound: float) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < bound


@dataclass(frozen=True, slots=True)
class PairedRate:
    """Amounts and the times that they took in one unit, in two modes."""

    amount: float
    seconds: float
    base_amount: float
    base_seconds: float

    @property
    def is_defined(self) -> bool:
        """Whether the unit has a rate in both modes."""
        return min(self.amount, self.seconds, self.base_amount, self.base_seconds) > 0.0


def ratio_of_totals(pairs: Sequence[PairedRate], *, seed: int = 0) -> Estimate | None:
    """All amounts over all seconds, divided by the same of the base: what a day's work gains.

    Long answers weigh more than short ones. None without a unit that has both rates.
    """
    return _estimate(pairs, _total_ratio, seed)


def median_ratio(pairs: Sequence[PairedRate], *, seed: int = 0) -> Estimate | None:
    """The median over units of their own ratios: what a typical prompt gains."""
    return _estimate(pairs, _median_ratio, seed)


def distinct_2(tokens: Sequence[int]) -> float:
    """Different pairs of neighbours over all pairs: near 1 for prose, near 0 for a loop."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def is_repetitive(tokens: Sequence[int]) -> bool:
    """Whether an output is a degenerate loop, which any drafter predicts."""
    return len(tokens) >= REPETITION_MIN_TOKENS and distinct_2(tokens) < REPETITIVE_BELOW


def _estimate(
    pairs: Sequence[PairedRate], statistic: Callable[[Floats], Floats], seed: int
) -> Estimate | None:
    rows = [
        (pair.amount, pair.seconds, pair.base_amount, pair.base_seconds)
        for pair in pairs
        if pair.is_defined
    ]
    if not rows:
        return None
    units = np.array(rows, dtype=np.float64)
    value = float(statistic(units[None])[0])
    if len(units) < MIN_UNITS:
        return Estimate(value, None, None, len(units))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(units), size=(NUM_RESAMPLES, len(units)))
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(statistic(units[drawn]), [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high), len(units))


def _total_ratio(samples: Floats) -> Floats:
    """[samples, units, 4] -> [samples]."""
    amount, seconds, base_amount, base_seconds = np.moveaxis(samples.sum(axis=1), -1, 0)
    ratio: Floats = (amount / seconds) / (base_amount / base_seconds)
    return ratio


def _median_ratio(samples: Floats) -> Floats:
    """[samples, units, 4] -> [samples]."""
    amount, seconds, base_amount, base_seconds = np.moveaxis(samples, -1, 0)
    ratios = (amount / seconds) / (base_amount / base_seconds)
    medians: Floats = np.median(ratios, axis=1)
    return medians
