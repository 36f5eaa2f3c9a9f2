"""Counters out of an engine's or a server's metrics."""

from __future__ import annotations

import re

from slipstream.observability.metric_spec import MetricSpec


def counter_sum(exposition: str, spec: MetricSpec) -> int:
    """Sum over all labels of a counter in Prometheus text; 0 if it is not there."""
    pattern = rf"^{spec.full_name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$"
    return int(sum(float(value) for value in re.findall(pattern, exposition, re.MULTILINE)))
