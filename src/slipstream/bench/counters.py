"""The engine's step counters, read from its metrics in Prometheus' text format."""

from __future__ import annotations

from slipstream.bench.results import StepTimes
from slipstream.observability.catalogue import (
    DRAFT_SECONDS,
    STEP_ROWS,
    STEP_SECONDS,
    VERIFY_SECONDS,
)


def read_step_times(exposition: str) -> StepTimes | None:
    """The counters so far; None where one of them is missing."""
    names = (
        f"{STEP_SECONDS.full_name}_count",
        f"{STEP_ROWS.full_name}_sum",
        f"{STEP_SECONDS.full_name}_sum",
        DRAFT_SECONDS.full_name,
        VERIFY_SECONDS.full_name,
    )
    values: dict[str, float] = {}
    for line in exposition.splitlines():
        name, _, value = line.partition(" ")
        if name in names:
            values[name] = float(value)
    if len(values) < len(names):
        return None
    num_steps, num_rows, total_s, draft_s, verify_s = (values[name] for name in names)
    return StepTimes(num_steps, num_rows, total_s, draft_s, verify_s)
