"""When other programs hold the processors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from slipstream.clock import ManualClock
from slipstream.engine.cpu_watch import CpuWatch
from slipstream.observability.cpu_times import CpuTimes, read_cpu_times
from slipstream.observability.engine_metrics import EngineMetrics


class Machine:
    """Two threads that step; `share` of the time in which they have work they wait."""

    def __init__(self, share: float | None = 0.0) -> None:
        self.share = share
        self.clock = ManualClock()
        self.metrics = EngineMetrics(self.clock)
        self._run_s = self._wait_s = 0.0
        self.watch = CpuWatch(self._read, self.metrics)

    def _read(self) -> CpuTimes | None:
        return None if self.share is None else CpuTimes(self._run_s, self._wait_s)

    def step_for(self, seconds: float) -> None:
        share = self.share or 0.0
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            self._run_s += 0.2 * (1.0 - share)
            self._wait_s += 0.2 * share
            self.watch.stepped(self.clock.now())


def test_a_shortage_is_warned_of_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(share=0.4)
    with caplog.at_level(logging.WARNING):
        machine.step_for(60)
    (record,) = caplog.records
    assert "waited for one in 40 % of the time" in record.getMessage()
    assert "engine.num_threads" in record.getMessage()


def test_a_quiet_machine_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Machine(share=0.1).step_for(60)
    assert not caplog.records


def test_a_new_shortage_after_a_calm_time_is_warned_of_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(share=0.4)
    with caplog.at_level(logging.WARNING):
        machine.step_for(20)
        machine.share = 0.0
        machine.step_for(20)
        machine.share = 0.4
        machine.step_for(20)
    assert len(caplog.records) == 2


def test_short_steps_between_long_rests_are_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(share=0.9)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            machine.step_for(0.5)
            machine.clock.advance(60.0)
    assert not caplog.records


def test_run_and_wait_are_counted() -> None:
    machine = Machine(share=0.25)
    machine.step_for(10)
    lines = machine.metrics.exposition().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    run_s = float(values["slipstream_cpu_run_seconds_total"])
    wait_s = float(values["slipstream_cpu_wait_seconds_total"])
    assert run_s > 0
    assert wait_s / (run_s + wait_s) == pytest.approx(0.25)


def test_a_system_that_does_not_tell_is_no_shortage(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Machine(share=None).step_for(60)
    assert not caplog.records


def test_times_are_summed_over_threads(tmp_path: Path) -> None:
    for thread, text in (("1", "1000000000 500000000 7"), ("2", "2000000000 0 1")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert read_cpu_times(tmp_path) == CpuTimes(run_s=3.0, wait_s=0.5)
    assert read_cpu_times(tmp_path / "1") is None
