"""The log lines that concern the whole engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slipstream.clock import ManualClock
from slipstream.engine.observer import EngineObserver
from slipstream.kv.cache import KvUsage
from slipstream.observability.engine_metrics import EngineMetrics


@pytest.mark.parametrize(
    ("leased", "num_warnings"),
    [
        ([10, 79], 0),
        ([80, 90, 99], 1),
        ([80, 79, 81, 60, 83, 41, 86], 1),
        ([80, 39, 80], 2),
    ],
)
def test_full_memory_is_warned_of_once_until_it_has_emptied(
    leased: Sequence[int], num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    observer = EngineObserver(EngineMetrics(ManualClock()), [], {}, warn_at=0.8)

    for num_leased in leased:
        observer.loaded({"target": usage_of(num_leased)}, num_waiting=0, num_running=1)

    assert caplog.text.count("of the KV pages are in use") == num_warnings


def usage_of(num_leased: int) -> KvUsage:
    return KvUsage(
        num_pages=100,
        num_free=100 - num_leased,
        num_evictable=0,
        num_leased=num_leased,
        num_cached=0,
        num_leases=1,
        num_queried_tokens=0,
        num_hit_tokens=0,
        num_evicted_pages=0,
    )
