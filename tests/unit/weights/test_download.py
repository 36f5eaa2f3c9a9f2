"""Downloads: parallel, resumed, verified, atomic."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.errors import CapacityError, ChecksumError, WeightsError
from slipstream.weights.download import Downloader, RemoteFile
from slipstream.weights.progress import SilentProgress
from tests.support.file_server import FileServer, file_server
from tests.unit.weights.recording import RecordingProgress

CONTENT = random.Random(0).randbytes(1_000_000)
FAST = Downloader(backoff_s=0.001)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        server.files["/a.bin"] = CONTENT
        yield server


def remote(server: FileServer, name: str = "a.bin", *, checked: bool = True) -> RemoteFile:
    content = server.files[f"/{name}"]
    sha256 = hashlib.sha256(content).hexdigest() if checked else None
    return RemoteFile(name, f"{server.url}/{name}", len(content), sha256)


def test_files_arrive_whole_with_their_checksums(server: FileServer, tmp_path: Path) -> None:
    server.files["/sub/b.bin"] = b"second"
    progress = RecordingProgress()

    checksums = FAST.fetch([remote(server), remote(server, "sub/b.bin")], tmp_path, progress)

    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert (tmp_path / "sub" / "b.bin").read_bytes() == b"second"
    assert checksums["a.bin"] == hashlib.sha256(CONTENT).hexdigest()
    assert progress.totals == [1_000_006]
    assert progress.bytes_done == [1_000_006]
    assert progress.num_ends == 1


def test_several_files_are_fetched_at_the_same_time(server: FileServer, tmp_path: Path) -> None:
    names = ["a.bin", "b.bin", "c.bin"]
    for name in names:
        server.files[f"/{name}"] = name.encode()
    server.gate.clear()
    files = [remote(server, name) for name in names]

    def open_gate_when_all_wait() -> None:
        for _ in names:
            assert server.waiting.acquire(timeout=10)
        server.gate.set()

    opener = threading.Thread(target=open_gate_when_all_wait)
    opener.start()
    FAST.fetch(files, tmp_path, SilentProgress())  # would wait for ever if one came after another
    opener.join()


def test_a_broken_connection_is_resumed_where_it_broke(server: FileServer, tmp_path: Path) -> None:
    server.break_after["/a.bin"] = [400_000, 100_000]
    progress = RecordingProgress()

    FAST.fetch([remote(server)], tmp_path, progress)

    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    first, *later = server.ranges_of("/a.bin")
    assert first == ""
    assert later == ["bytes=400000-", "bytes=500000-"]
    assert progress.bytes_done == [1_000_000]


def test_a_connection_that_breaks_often_but_brings_bytes_gets_there(
    server: FileServer, tmp_path: Path
) -> None:
    server.break_after["/a.bin"] = [50_000] * 15

    FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_another_process_resumes_what_one_left(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:123_456])

    FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges_of("/a.bin") == ["bytes=123456-"]


def test_without_a_checksum_nothing_is_resumed(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"of an older version")

    FAST.fetch([remote(server, checked=False)], tmp_path, SilentProgress())

    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges_of("/a.bin") == [""]


def test_a_server_without_ranges_starts_over(server: FileServer, tmp_path: Path) -> None:
    server.has_ranges = False
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    progress = RecordingProgress()

    FAST.fetch([remote(server)], tmp_path, progress)

    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert progress.bytes_done == [1_000_000]


def test_a_part_longer_than_the_file_starts_over(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(bytes(2_000_000))

    FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_file_that_is_there_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    FAST.fetch([remote(server)], tmp_path, SilentProgress())
    FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert len(server.requests) == 1


def test_passing_server_errors_are_waited_out(server: FileServer, tmp_path: Path) -> None:
    server.statuses["/a.bin"] = [503, 429, 500]

    FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_lasting_server_errors_are_reported(server: FileServer, tmp_path: Path) -> None:
    server.statuses["/a.bin"] = [503] * 10

    with pytest.raises(WeightsError, match=r"a\.bin: the server answers 503 .*5 attempts"):
        FAST.fetch([remote(server)], tmp_path, SilentProgress())


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_not_tried_again(server: FileServer, tmp_path: Path, status: int) -> None:
    server.statuses["/a.bin"] = [status]

    with pytest.raises(WeightsError, match=f"answers {status}"):
        FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert len(server.requests) == 1


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    file = RemoteFile("a.bin", "http://127.0.0.1:1/a.bin")

    with pytest.raises(WeightsError, match=r"cannot fetch .*refused.*5 attempts"):
        FAST.fetch([file], tmp_path, SilentProgress())


def test_wrong_bytes_never_get_the_files_name(server: FileServer, tmp_path: Path) -> None:
    file = remote(server)
    server.files["/a.bin"] = bytes(len(CONTENT))

    with pytest.raises(ChecksumError, match="does not have the SHA-256"):
        FAST.fetch([file], tmp_path, SilentProgress())

    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_is_refused(server: FileServer, tmp_path: Path) -> None:
    file = remote(server, checked=False)
    server.files["/a.bin"] = CONTENT[:10]

    with pytest.raises(ChecksumError, match="10 bytes instead of 1000000"):
        FAST.fetch([file], tmp_path, SilentProgress())


def test_one_files_failure_ends_the_others(server: FileServer, tmp_path: Path) -> None:
    server.files["/b.bin"] = b"b"
    server.statuses["/b.bin"] = [404]

    with pytest.raises(WeightsError, match=r"b\.bin: the server answers 404"):
        FAST.fetch([remote(server), remote(server, "b.bin")], tmp_path, SilentProgress())


def test_a_full_disk_is_a_capacity_error(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").symlink_to("/dev/full")  # every write to it fails with ENOSPC

    with pytest.raises(CapacityError, match="no space is left") as caught:
        FAST.fetch([remote(server)], tmp_path, SilentProgress())

    assert caught.value.hint is not None
    assert "model.cache_dir" in caught.value.hint


def test_a_disk_that_would_become_full_is_refused_first(server: FileServer, tmp_path: Path) -> None:
    file = RemoteFile("a.bin", f"{server.url}/a.bin", num_bytes=10**18)

    with pytest.raises(CapacityError, match=r"GB free, but 1000000000\.00 GB are needed"):
        FAST.fetch([file], tmp_path, SilentProgress())

    assert server.requests == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.bin", "a/../../b", "", "a\\b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match="leaves its folder"):
        FAST.fetch([RemoteFile(name, "http://127.0.0.1:1/")], tmp_path, SilentProgress())
