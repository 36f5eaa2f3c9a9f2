"""How many threads compute, and where more are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.execution.cores import Cores, choose_num_threads, read_cores


def system_of(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_has_processors() -> None:
    cores = read_cores()
    assert 1 <= cores.num_threads <= cores.num_cores <= cores.num_processors


def test_two_processors_of_one_core_are_one_core(tmp_path: Path) -> None:
    pairs = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    system = system_of(tmp_path, {topology.format(cpu): pair for cpu, pair in pairs.items()})
    assert read_cores({0, 1, 2, 3}, system) == Cores(4, 2)
    assert read_cores({1, 3}, system) == Cores(2, 1)


def test_without_a_topology_every_processor_counts_as_a_core(tmp_path: Path) -> None:
    assert read_cores({4, 5, 6}, tmp_path) == Cores(3, 3)


def test_the_smallest_quota_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    cores = read_cores(range(8), system_of(tmp_path, files))
    assert cores.quota == 2.5
    assert cores.num_threads == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", None), ("50000", 0.5)])
def test_quotas_of_the_older_interface_are_read(
    tmp_path: Path, quota: str, expected: float | None
) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
    }
    cores = read_cores(range(8), system_of(tmp_path, files))
    assert cores.quota == expected
    assert cores.num_threads == (8 if expected is None else 1)


def test_null_takes_one_thread_a_core() -> None:
    assert choose_num_threads(None, Cores(8, 4)) == 4


def test_all_processors_may_be_asked_for() -> None:
    assert choose_num_threads(8, Cores(8, 4)) == 8


def test_more_threads_than_processors_are_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_num_threads(64, Cores(8, 4, quota=3.0))
    assert caught.value.message == (
        "engine.num_threads must be 1 to 8 here, got 64: this process may use 8 processors on 4 "
        "cores, a quota of 3 processors"
    )
    assert caught.value.hint is not None
    assert "takes 3" in caught.value.hint


def test_processes_that_compute_together_share_the_cores() -> None:
    assert choose_num_threads(None, Cores(8, 4), 2) == 2
    assert choose_num_threads(None, Cores(8, 4), 3) == 1
    assert choose_num_threads(None, Cores(2, 2), 8) == 1
    assert choose_num_threads(4, Cores(8, 4), 2) == 4


def test_processes_that_ask_for_more_threads_than_they_share_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_num_threads(8, Cores(8, 4), 2)
    assert caught.value.message == (
        "engine.num_threads must be 1 to 4 here, got 8: this process may use 8 processors on 4 "
        "cores, and 2 processes share them"
    )
    assert caught.value.hint is not None
    assert "takes 2" in caught.value.hint
