"""What is measured at start."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest

from slipstream.clock import ManualClock
from slipstream.execution.batch import ForwardBatch
from slipstream.execution.profile import profile_steps
from slipstream.execution.runner import Runner


class BusyRunner:
    """A pass takes 1 s and 0.1 s per row, and some passes take much longer."""

    def __init__(self, clock: ManualClock, disturbed: range) -> None:
        self._clock = clock
        self._disturbed = disturbed
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch) -> None:
        slowdown = 10.0 if len(self.batches) in self._disturbed else 1.0
        self._clock.advance(slowdown * (1.0 + 0.1 * len(batch.tokens)))
        self.batches.append(batch)


@pytest.mark.parametrize("disturbed", [range(0), range(7), range(4, 11), range(10, 18)])
def test_a_busy_moment_at_start_spoils_no_measurement(disturbed: range) -> None:
    clock = ManualClock()
    runner = BusyRunner(clock, disturbed)
    seconds = profile_steps(cast(Runner, runner), [1, 4, 8], clock)
    assert seconds == pytest.approx({1: 1.1, 4: 1.4, 8: 1.8})


def test_only_the_scratch_slot_is_written() -> None:
    clock = ManualClock()
    runner = BusyRunner(clock, range(0))
    profile_steps(cast(Runner, runner), [1, 8], clock)
    assert {len(batch.tokens) for batch in runner.batches} == {1, 8}
    for batch in runner.batches:
        assert not batch.slots.any()
        assert len(batch.logit_rows) == len(batch.tokens)


def test_wide_passes_are_measured_less_often_because_they_take_most_of_the_time() -> None:
    clock = ManualClock()
    runner = BusyRunner(clock, range(0))
    profile_steps(cast(Runner, runner), [1, 8, 128], clock)
    widths = [len(batch.tokens) for batch in runner.batches]
    assert widths.count(128) < widths.count(8) == widths.count(1)


def test_a_size_is_measured_after_passes_of_its_own_size() -> None:
    clock = ManualClock()
    runner = BusyRunner(clock, range(0))
    profile_steps(cast(Runner, runner), [1, 8], clock)
    widths = [len(batch.tokens) for batch in runner.batches]
    assert all((rows, rows) in pairwise(widths) for rows in (1, 8))
