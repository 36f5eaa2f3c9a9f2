"""Several ways of computing one thing, timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from slipstream.clock import Clock

NATIVE, TWIN, TORCH = "native", "twin", "torch"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way.

    Attributes:
        name: `native`; `twin`, what serves where the native kernels are not there; or `torch`,
            torch's own function of that kind, which promises no row its bits.
        run: Makes `num_calls` calls, the next ones of its rotation.
        overhead: Makes as many calls that compute nothing; their time is taken off. None where a
            call costs next to nothing beside what it does.
    """

    name: str
    run: Callable[[], None]
    num_calls: int
    overhead: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel at one size.

    Attributes:
        group, kernel: Where it stands in the tables.
        num_bytes: That one call of the native kernel reads and writes at least.
    """

    group: str
    kernel: str
    num_rows: int
    num_bytes: int
    contestants: tuple[Contestant, ...]


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """What a case took.

    Attributes:
        seconds: Contestant -> median time of one call.
        bandwidth_share: Time that moving the bytes takes over the native kernel's time.
    """

    group: str
    kernel: str
    num_rows: int
    num_bytes: int
    seconds: Mapping[str, float]
    bandwidth_share: float


def hold_contest(
    case: KernelCase, bytes_per_s: float, num_repeats: int, clock: Clock
) -> KernelTimes:
    """Run all ways in turn, so that a busy moment falls on all of them.

    Args:
        bytes_per_s: What the memory gives.
    """
    times: dict[str, list[float]] = {contestant.name: [] for contestant in case.contestants}
    for contestant in case.contestants:
        contestant.run()  # a first call may build, touch or look up
    for _ in range(num_repeats):
        for contestant in case.contestants:
            seconds = _seconds(contestant.run, clock)
            if contestant.overhead is not None:
                seconds = max(seconds - _seconds(contestant.overhead, clock), 0.0)
            times[contestant.name].append(seconds / contestant.num_calls)
    seconds_of = {name: max(median(values), 1e-9) for name, values in times.items()}
    return KernelTimes(
        group=case.group,
        kernel=case.kernel,
        num_rows=case.num_rows,
        num_bytes=case.num_bytes,
        seconds=seconds_of,
        bandwidth_share=case.num_bytes / bytes_per_s / seconds_of[NATIVE],
    )


class Rotation:
    """Goes round a number of copies, some at a time, so that a copy has left the cache when its
    turn comes again.

    Args:
        num_copies: In all.
        at_once: In one run; at most `num_copies`.
    """

    def __init__(self, num_copies: int, at_once: int) -> None:
        self.at_once = min(at_once, num_copies)
        self._num_copies = num_copies
        self._next = 0

    def turn(self) -> int:
        """First copy of the next run; the run's copies do not wrap around."""
        if self._next + self.at_once > self._num_copies:
            self._next = 0
        first = self._next
        self._next += self.at_once
        return first


def repeat(calls: Sequence[Callable[[], object]], rotation: Rotation) -> Callable[[], None]:
    """A run that makes the calls of the rotation's copies, one after the other."""

    def run() -> None:
        first = rotation.turn()
        for call in calls[first : first + rotation.at_once]:
            call()

    return run


def _seconds(run: Callable[[], None], clock: Clock) -> float:
    started_s = clock.now()
    run()
    return clock.now() - started_s
