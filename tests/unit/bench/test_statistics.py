"""Ratios, their intervals, and repetition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench.statistics import (
    MIN_UNITS,
    PairedRate,
    distinct_2,
    is_repetitive,
    median_ratio,
    ratio_of_totals,
)


def pairs_with_ratios(ratios: list[float], base_s: float = 1.0) -> list[PairedRate]:
    return [PairedRate(100.0, base_s / ratio, 100.0, base_s) for ratio in ratios]


def test_a_constant_speed_up_is_found_exactly_and_without_doubt() -> None:
    pairs = [PairedRate(n, n / 30.0, n, n / 20.0) for n in (10.0, 50.0, 90.0, 130.0, 170.0)]
    for estimate in (ratio_of_totals(pairs), median_ratio(pairs)):
        assert estimate is not None
        assert estimate.value == pytest.approx(1.5)
        assert estimate.low == pytest.approx(1.5)
        assert estimate.high == pytest.approx(1.5)


def test_the_ratio_of_totals_weighs_by_time_and_the_median_does_not() -> None:
    pairs = [PairedRate(1000, 50, 1000, 100), PairedRate(10, 1, 10, 1), PairedRate(10, 1, 10, 1)]
    total, typical = ratio_of_totals(pairs), median_ratio(pairs)
    assert total is not None
    assert typical is not None
    assert total.value == pytest.approx(102 / 52)
    assert typical.value == pytest.approx(1.0)


def test_a_unit_without_a_rate_in_one_of_the_modes_is_left_out_of_both() -> None:
    pairs = [PairedRate(10, 1, 10, 2), PairedRate(0, 0, 10, 1), PairedRate(10, 1, 0, 0)]
    estimate = ratio_of_totals(pairs)
    assert estimate is not None
    assert estimate.value == pytest.approx(2.0)
    assert estimate.num_units == 1


def test_nothing_to_compare_gives_no_estimate() -> None:
    assert ratio_of_totals([]) is None
    assert median_ratio([PairedRate(0, 0, 0, 0)]) is None


def test_few_units_give_no_interval() -> None:
    few = ratio_of_totals(pairs_with_ratios([1.1] * (MIN_UNITS - 1)))
    enough = ratio_of_totals(pairs_with_ratios([1.1] * MIN_UNITS))
    assert few is not None
    assert enough is not None
    assert few.low is None
    assert not few.is_above(1.0)
    assert enough.is_above(1.0)


def test_the_bootstrap_is_seeded() -> None:
    pairs = pairs_with_ratios([0.9, 1.0, 1.1, 1.3, 1.6, 1.2])
    assert ratio_of_totals(pairs) == ratio_of_totals(pairs)
    assert ratio_of_totals(pairs) != ratio_of_totals(pairs, seed=1)


@given(st.lists(st.floats(0.5, 2.0), min_size=MIN_UNITS, max_size=30))
@settings(deadline=None, max_examples=25)
def test_intervals_lie_within_the_units_ratios(ratios: list[float]) -> None:
    for estimate in (
        ratio_of_totals(pairs_with_ratios(ratios)),
        median_ratio(pairs_with_ratios(ratios)),
    ):
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        assert min(ratios) <= estimate.low * (1 + 1e-9)
        assert estimate.low <= estimate.high
        assert estimate.high <= max(ratios) * (1 + 1e-9)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """100 benchmarks of 25 prompts whose speed-ups scatter around 1.2 in the geometric mean."""
    rng = np.random.default_rng(3)
    num_held = 0
    for _ in range(100):
        estimate = median_ratio(pairs_with_ratios(list(1.2 * rng.lognormal(0.0, 0.2, 25))))
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        num_held += estimate.low <= 1.2 <= estimate.high
    assert num_held >= 88


def test_pairing_cancels_the_difference_between_prompts() -> None:
    """Base times differ by a factor of 100, the speed-up hardly: the interval is narrow."""
    rng = np.random.default_rng(5)
    pairs = [
        PairedRate(100, base_s / 1.1, 100, base_s * noise)
        for base_s, noise in zip(np.geomspace(0.1, 10, 30), rng.normal(1.0, 0.01, 30), strict=True)
    ]
    estimate = ratio_of_totals(pairs)
    assert estimate is not None
    assert estimate.is_above(1.08)
    assert estimate.is_below(1.12)


def test_a_loop_has_few_distinct_pairs_and_prose_many() -> None:
    assert distinct_2([1, 2, 3, 4]) == 1.0
    assert distinct_2([7] * 50) == pytest.approx(1 / 49)
    assert distinct_2([7]) == 1.0
    assert is_repetitive([1, 2, 3, 4, 5] * 20)
    assert not is_repetitive(list(range(100)))


def test_a_short_output_is_never_called_a_loop() -> None:
    assert not is_repetitive([7] * 10)
