"""Processor time of this process: what it got, and what it waited for while others had it.

Source: /proc/PID/task/TID/schedstat (Linux, Documentation/scheduler/sched-stats.rst): nanoseconds
on a processor, nanoseconds ready to run but waiting for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Sums over threads, in seconds: `run_s` on a processor, `wait_s` ready but waiting."""

    run_s: float
    wait_s: float


def read_cpu_times(tasks: Path = _TASKS) -> CpuTimes | None:
    """Of all threads that live now; None where the system does not tell."""
    run_ns = wait_ns = num_told = 0
    for path in tasks.glob("*/schedstat"):
        try:
            run, wait, _ = path.read_text().split()
        except (OSError, ValueError):  # the thread has ended, or statistics are off
            continue
        num_told += 1
        run_ns, wait_ns = run_ns + int(run), wait_ns + int(wait)
    return CpuTimes(run_ns * 1e-9, wait_ns * 1e-9) if num_told else None
