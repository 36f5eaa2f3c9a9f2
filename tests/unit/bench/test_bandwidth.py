"""The rate at which a buffer is read."""

from __future__ import annotations

import pytest

from slipstream.bench.bandwidth import READS_AT_ONCE, BandwidthMeter
from slipstream.clock import ManualClock
from tests.support.native import native_kernels


class TickingClock(ManualClock):
    """A second passes with every look at it."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


@pytest.mark.parametrize(("num_bytes", "expected"), [(4096, 4096), (4100, 4096), (0, 8)])
def test_rates_are_whole_words_over_seconds_and_the_first_read_does_not_count(
    num_bytes: int, expected: int
) -> None:
    meter = BandwidthMeter(native_kernels(), num_bytes, TickingClock())
    assert meter.read() == [expected] * (READS_AT_ONCE - 1)
