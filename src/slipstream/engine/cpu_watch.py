"""Notices when other programs hold the processors that the engine computes on.

A pass is as slow as its slowest thread, so one busy core of two costs more than half the speed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipstream.observability.cpu_times import CpuTimes
from slipstream.observability.engine_metrics import EngineMetrics

SAMPLE_S = 1.0
WINDOW_S = 10.0
WARN_SHARE = 0.15
CALM_SHARE = 0.05

log = logging.getLogger("slipstream.engine")


class CpuWatch:
    """Counts the processor time that the engine got and waited for, and warns once of a shortage.

    Only time with steps counts: threads of an idle engine wait for nothing.

    Args:
        read: The process's times so far; None where the system does not tell.
        metrics: Where they go.
    """

    def __init__(self, read: Callable[[], CpuTimes | None], metrics: EngineMetrics) -> None:
        self._read = read
        self._metrics = metrics
        self._sampled_s = float("-inf")
        self._last: CpuTimes | None = None
        self._run_s = self._wait_s = 0.0
        self._is_short = False

    def stepped(self, now_s: float) -> None:
        """A step has ended; most calls only look at the time."""
        pause_s = now_s - self._sampled_s
        if pause_s < SAMPLE_S:
            return
        times, last = self._read(), self._last
        self._sampled_s, self._last = now_s, times
        if times is None or last is None or pause_s > 2 * SAMPLE_S:
            return  # after a rest the sums hold little of steps
        run_s = max(0.0, times.run_s - last.run_s)  # less where a thread has ended
        wait_s = max(0.0, times.wait_s - last.wait_s)
        self._metrics.observe_cpu(run_s, wait_s)
        self._run_s += run_s
        self._wait_s += wait_s
        if self._run_s + self._wait_s >= WINDOW_S:
            self._judge(self._wait_s / (self._run_s + self._wait_s))
            self._run_s = self._wait_s = 0.0

    def _judge(self, wait_share: float) -> None:
        if wait_share < CALM_SHARE:
            self._is_short = False
        elif wait_share >= WARN_SHARE and not self._is_short:
            self._is_short = True
            log.warning(
                "other programs hold the processors: the engine's threads waited for one in "
                "%.0f %% of the time in which they had work, and a step waits for its slowest "
                "thread; stop the other programs, keep them off these processors (taskset, a "
                "cpuset), or set engine.num_threads to the number of free cores",
                100.0 * wait_share,
            )
