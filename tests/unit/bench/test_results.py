"""Sums of counts and times."""

from __future__ import annotations

import pytest

from slipstream.bench.counters import read_step_times
from slipstream.bench.results import DraftCounts, StepTimes, busy_seconds
from slipstream.clock import ManualClock
from slipstream.observability.engine_metrics import EngineMetrics
from slipstream.observability.engine_metrics import StepTimes as EngineStep
from tests.unit.bench.synthetic import Speed, turn


def test_overlapping_turns_are_busy_once_and_gaps_are_not() -> None:
    assert busy_seconds([(0, 2), (1, 3), (5, 6), (5.5, 5.75)]) == 4
    assert busy_seconds([]) == 0


def test_counts_by_depth_are_added_depth_by_depth() -> None:
    total = DraftCounts.total(
        [DraftCounts(5, 2, 4, 2, (2, 2), (1, 1)), DraftCounts(3, 1, 1, 1, (1,), (1,))]
    )
    assert total == DraftCounts(8, 3, 5, 3, (3, 2), (2, 1))


def test_a_turn_decodes_after_its_first_event() -> None:
    done = turn(Speed(num_tokens=11, ttft_s=0.5, step_s=0.1))
    assert done.ttft_s == 0.5
    assert done.num_decode_tokens == 10
    assert done.num_decode_steps == 10
    assert done.decode_s == pytest.approx(1.0)
    assert done.e2e_s == pytest.approx(1.5)


def test_step_times_are_read_from_the_engines_own_exposition() -> None:
    metrics = EngineMetrics(ManualClock())
    before = read_step_times(metrics.exposition().decode())
    metrics.observe_step(EngineStep(total_s=0.5, draft_s=0.1, verify_s=0.4, num_rows=7))
    metrics.observe_step(EngineStep(total_s=0.25, draft_s=0.0, verify_s=0.25, num_rows=1))
    after = read_step_times(metrics.exposition().decode())
    assert before is not None
    assert after is not None
    assert after.since(before) == StepTimes(2, 8, 0.75, 0.1, 0.65)


def test_step_times_of_another_engine_are_not_known() -> None:
    assert read_step_times("other_step_seconds_sum 1\n") is None
    assert StepTimes.total([StepTimes(1, 1, 1, 0, 1), None]) is None
