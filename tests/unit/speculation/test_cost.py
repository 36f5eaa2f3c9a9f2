"""What a pass is expected to take, by its rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.cost import StepCost

PROFILE = {1: 1.0, 4: 1.3, 8: 2.5}


def test_measured_sizes_cost_what_was_measured() -> None:
    cost = StepCost(PROFILE)
    assert [cost.seconds(rows) for rows in (1, 4, 8)] == [1.0, 1.3, 2.5]


def test_sizes_between_are_interpolated() -> None:
    assert StepCost(PROFILE).seconds(6) == pytest.approx((1.3 + 2.5) / 2)


def test_sizes_above_the_largest_grow_in_proportion() -> None:
    assert StepCost(PROFILE).seconds(16) == pytest.approx(5.0)


def test_a_single_measurement_is_enough() -> None:
    cost = StepCost({4: 2.0})
    assert cost.seconds(1) == 2.0
    assert cost.seconds(8) == 4.0


def test_no_measurement_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        StepCost({})


@settings(max_examples=100, deadline=None)
@given(
    profile=st.dictionaries(st.integers(1, 128), st.floats(0.001, 10.0), min_size=1, max_size=8),
    rows=st.lists(st.integers(1, 300), min_size=2, max_size=20),
)
def test_more_rows_never_cost_less(profile: dict[int, float], rows: list[int]) -> None:
    cost = StepCost(profile)
    seconds = [cost.seconds(count) for count in sorted(rows)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(seconds))


def test_a_disturbed_measurement_makes_no_wider_pass_look_free() -> None:
    cost = StepCost({1: 9.0, 2: 1.1, 4: 1.3, 8: 2.5})
    assert [cost.seconds(rows) for rows in (1, 2, 4, 8)] == [1.1, 1.1, 1.3, 2.5]


def test_the_level_follows_what_passes_really_take() -> None:
    cost = StepCost(PROFILE)
    for _ in range(100):
        cost.observe(4, 2.6)
    assert cost.seconds(4) == pytest.approx(2.6, rel=0.01)
    assert cost.seconds(1) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_one_strange_pass_moves_the_level_by_a_twelfth_at_most(seconds: float) -> None:
    cost = StepCost(PROFILE)
    cost.observe(4, seconds)
    assert cost.seconds(4) == pytest.approx(1.3, rel=1 / 12)


def test_the_shape_follows_passes_that_take_turns() -> None:
    cost = StepCost({1: 1.3, 2: 1.4, 4: 1.5, 8: 2.0})
    true = {1: 1.0, 2: 1.4, 4: 1.6, 8: 2.0}
    for turn in range(1500):
        rows = (1, 1, 1, 2, 1, 4, 1, 1, 8)[turn % 9]
        cost.observe(rows, true[rows] * (1.0 + turn / 1000))  # while the load grows
    learned = {rows: cost.seconds(rows) / cost.seconds(1) for rows in true}
    assert learned == pytest.approx(true, rel=0.05)


def test_load_that_comes_and_goes_leaves_the_shape() -> None:
    cost = StepCost(PROFILE)
    for turn in range(2000):
        cost.observe(
            (1, 4, 8, 4)[turn % 4], PROFILE[(1, 4, 8, 4)[turn % 4]] * (1 + turn // 100 % 2)
        )
    assert cost.seconds(8) / cost.seconds(1) == pytest.approx(2.5, rel=0.05)
    for _ in range(2000):
        cost.observe(1, 3.0)
    assert cost.seconds(8) / cost.seconds(1) == pytest.approx(2.5, rel=0.05)


def test_one_slow_pass_hardly_changes_the_shape() -> None:
    cost = StepCost(PROFILE)
    for seconds, rows in ((1.0, 1), (1000.0, 4), (1.0, 1)):
        cost.observe(rows, seconds)
    assert cost.seconds(4) / cost.seconds(1) == pytest.approx(1.3, rel=0.06)
