"""Ways of computing one thing, timed in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slipstream.bench.contest import (
    NATIVE,
    TORCH,
    Contestant,
    KernelCase,
    Rotation,
    hold_contest,
    repeat,
)
from slipstream.clock import ManualClock


def taking(clock: ManualClock, *seconds: float) -> Callable[[], None]:
    """Runs that take these times, the last one again and again."""
    left = list(seconds)

    def run() -> None:
        clock.advance(left.pop(0) if len(left) > 1 else left[0])

    return run


def case_of(*contestants: Contestant) -> KernelCase:
    return KernelCase("group", "kernel", num_rows=1, num_bytes=1000, contestants=contestants)


def test_times_are_medians_of_one_call_after_a_first_run_that_does_not_count() -> None:
    clock = ManualClock()
    native = Contestant(NATIVE, taking(clock, 90.0, 2.0, 8.0, 4.0), num_calls=2)
    torch = Contestant(TORCH, taking(clock, 10.0), num_calls=10)
    times = hold_contest(case_of(native, torch), 1000.0, 3, clock)
    assert times.seconds == {NATIVE: 2.0, TORCH: 1.0}
    assert times.bandwidth_share == pytest.approx(1000 / 1000.0 / 2.0)


def test_what_calls_cost_that_compute_nothing_is_taken_off() -> None:
    clock = ManualClock()
    native = Contestant(NATIVE, taking(clock, 5.0), 1, overhead=taking(clock, 3.0))
    assert hold_contest(case_of(native), 1.0, 1, clock).seconds == {NATIVE: 2.0}


def test_a_time_never_falls_below_zero() -> None:
    clock = ManualClock()
    native = Contestant(NATIVE, taking(clock, 1.0), 1, overhead=taking(clock, 3.0))
    assert hold_contest(case_of(native), 1.0, 1, clock).seconds[NATIVE] > 0.0


def test_ways_are_run_in_turn() -> None:
    order: list[str] = []
    contestants = [
        Contestant(name, lambda name=name: order.append(name), 1)  # type: ignore[misc]  # a default binds it
        for name in (NATIVE, TORCH)
    ]
    hold_contest(case_of(*contestants), 1.0, 2, ManualClock())
    assert order == [NATIVE, TORCH] * 3


def test_a_rotation_meets_every_copy_before_one_comes_again() -> None:
    made: list[int] = []
    calls = [lambda copy=copy: made.append(copy) for copy in range(6)]
    run = repeat(calls, Rotation(6, 2))
    for _ in range(4):
        run()
    assert made == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(("num_copies", "at_once"), [(5, 2), (2, 30), (1, 1)])
def test_a_run_never_reaches_behind_the_last_copy(num_copies: int, at_once: int) -> None:
    rotation = Rotation(num_copies, at_once)
    for _ in range(7):
        assert 0 <= rotation.turn() <= num_copies - rotation.at_once
