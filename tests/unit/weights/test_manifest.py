"""Checksums beside the weights."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from slipstream.errors import ChecksumError, WeightsError
from slipstream.weights.manifest import (
    MANIFEST_NAME,
    check_against_checksums,
    read_manifest,
    read_sums,
    sha256_of,
    write_manifest,
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    write_manifest(tmp_path, "org/name@main", {"model.gguf": sha256_of(path)}, "abc")
    return path


def rewrite(path: Path, content: bytes, *, keep_time: bool) -> None:
    status = path.stat()
    path.write_bytes(content)
    changed = status.st_mtime_ns if keep_time else status.st_mtime_ns + 1
    os.utime(path, ns=(status.st_atime_ns, changed))


def test_the_checksum_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    heard: list[int] = []

    assert sha256_of(tmp_path / "file", heard.append) == hashlib.sha256(b"abc").hexdigest()
    assert heard == [3]


def test_a_manifest_reads_back_as_written(weights: Path) -> None:
    manifest = read_manifest(weights.parent)

    assert manifest is not None
    assert (manifest.source, manifest.revision) == ("org/name@main", "abc")
    assert manifest.files["model.gguf"].num_bytes == 7000


def test_an_unchanged_file_passes(weights: Path) -> None:
    check_against_checksums(weights.parent, [weights])


def test_another_size_is_refused(weights: Path) -> None:
    rewrite(weights, b"short", keep_time=True)

    with pytest.raises(ChecksumError, match=r"model\.gguf has 5 bytes instead of the 7000"):
        check_against_checksums(weights.parent, [weights])


def test_a_file_with_another_time_is_hashed_again(weights: Path) -> None:
    rewrite(weights, b"weights" * 1000, keep_time=False)
    check_against_checksums(weights.parent, [weights])

    rewrite(weights, b"Weights" * 1000, keep_time=False)
    with pytest.raises(ChecksumError, match="not the file that was promised"):
        check_against_checksums(weights.parent, [weights])


def test_a_folder_without_checksums_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()

    check_against_checksums(tmp_path, [tmp_path / "model.gguf"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 99, "files": {}}'])
def test_a_damaged_manifest_is_named(weights: Path, content: str) -> None:
    (weights.parent / MANIFEST_NAME).write_text(content)

    with pytest.raises(WeightsError, match=MANIFEST_NAME):
        read_manifest(weights.parent)


def test_sums_are_read_in_the_forms_that_sha256sum_writes(tmp_path: Path) -> None:
    first, second = "a" * 64, "b" * 64
    (tmp_path / "SHA256SUMS").write_text(f"{first}  one\n{second} *./two words\n\n")

    assert read_sums(tmp_path) == {"one": first, "two words": second}


def test_a_malformed_line_of_sums_is_named(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{'a' * 64}  one\nnonsense\n")

    with pytest.raises(WeightsError, match="line 2"):
        read_sums(tmp_path)
