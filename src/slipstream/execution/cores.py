"""How many processors this process may use: its affinity, their cores, its control group's quota.

Sources: sched_setaffinity(2); Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
cgroup-v1 (cpu.cfs_quota_us); /sys/devices/system/cpu/cpuN/topology.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError

_SYSTEM = Path("/")


@dataclass(frozen=True, slots=True)
class Cores:
    """What there is to compute with.

    Attributes:
        num_processors: Logical ones in the affinity mask.
        num_cores: Physical cores that these are of: two threads on one core share its units.
        quota: Processors' worth of time that the control group grants; None is no limit.
    """

    num_processors: int
    num_cores: int
    quota: float | None = None

    @property
    def num_threads(self) -> int:
        """Threads that do not get in each other's way: one a core, within the quota."""
        if self.quota is None:
            return self.num_cores
        return max(1, min(self.num_cores, int(self.quota)))

    def __str__(self) -> str:
        quota = "" if self.quota is None else f", a quota of {self.quota:g} processors"
        return f"{self.num_processors} processors on {self.num_cores} cores{quota}"


def read_cores(processors: Collection[int] | None = None, system: Path = _SYSTEM) -> Cores:
    """Of this process.

    Args:
        processors: Ids that it may use; None asks the system.
        system: The file system's root. What is not readable there counts as no limit, and as one
            core for each processor.
    """
    if processors is None:
        processors = os.sched_getaffinity(0)
    topology = system / "sys/devices/system/cpu"
    siblings = {_siblings(topology, processor) for processor in processors}
    return Cores(len(processors), len(siblings), min(_quotas(system), default=None))


def choose_num_threads(setting: int | None, cores: Cores, num_processes: int = 1) -> int:
    """Threads to compute with.

    Args:
        setting: `engine.num_threads`.
        num_processes: How many that compute at the same time share the cores, this one included.
    Raises:
        ConfigError: It asks for more than there are processors: threads wait for each other in
            every product, so a pass would take many times as long.
    """
    fitting = max(1, cores.num_threads // num_processes)
    if setting is None:
        return fitting
    most = max(1, cores.num_processors // num_processes)
    if setting > most:
        sharing = "" if num_processes == 1 else f", and {num_processes} processes share them"
        raise ConfigError(
            f"engine.num_threads must be 1 to {most} here, got {setting}: this "
            f"process may use {cores}{sharing}",
            hint=f"leave it null, which takes {fitting}, or give the process more "
            "processors (taskset, the container's cpuset)",
        )
    return setting


def _siblings(topology: Path, processor: int) -> str:
    """A text that the processors of one core share, and no others."""
    try:
        return (topology / f"cpu{processor}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return f"alone {processor}"


def _quotas(system: Path) -> Iterator[float]:
    """Every limit on the way from this process's control group up to the root."""
    for line in _lines(system / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            if not controllers:
                yield from _unified_quota(system / "sys/fs/cgroup" / folder)
            for mount in {controllers, "cpu"} if controllers else ():
                yield from _old_quota(system / "sys/fs/cgroup" / mount / folder)


def _unified_quota(folder: Path) -> Iterator[float]:
    for line in _lines(folder / "cpu.max"):
        quota, _, period = line.partition(" ")
        if quota != "max":
            yield int(quota) / int(period)


def _old_quota(folder: Path) -> Iterator[float]:
    quota, period = (_lines(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota and period and int(quota[0]) > 0:
        yield int(quota[0]) / int(period[0])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
