"""Checksums beside the weights: our own manifest, written at a pull, or a SHA256SUMS file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ChecksumError, WeightsError

MANIFEST_NAME = "slipstream-manifest.json"
SUMS_NAME = "SHA256SUMS"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_HASH_THREADS = 4


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file as it was when its checksum was last confirmed; `mtime_ns` as `os.stat` gives it."""

    num_bytes: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a pull brought: the source's name and every file, by path relative to the folder.

    `revision` is the exact version at the source, where it has such a thing.
    """

    source: str
    files: Mapping[str, FileRecord]
    revision: str | None = None


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """The file's SHA-256 in hexadecimal; `on_bytes` hears of every chunk."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def write_manifest(
    folder: Path, source: str, checksums: Mapping[str, str], revision: str | None = None
) -> None:
    """Record verified files: `checksums` maps paths relative to `folder` to their SHA-256."""
    files = {}
    for name, sha256 in sorted(checksums.items()):
        status = (folder / name).stat()
        files[name] = {
            "num_bytes": status.st_size,
            "sha256": sha256,
            "mtime_ns": status.st_mtime_ns,
        }
    content = {"format": _FORMAT, "source": source, "revision": revision, "files": files}
    temporary = folder / f".{MANIFEST_NAME}.{os.getpid()}"
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(folder / MANIFEST_NAME)


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none.

    Raises:
        WeightsError: it is there and cannot be understood.
    """
    path = folder / MANIFEST_NAME
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise WeightsError(f"{path} has format {content['format']!r}; {_FORMAT} is known")
        files = {
            str(name): FileRecord(
                int(entry["num_bytes"]), str(entry["sha256"]), int(entry["mtime_ns"])
            )
            for name, entry in content["files"].items()
        }
        return Manifest(str(content["source"]), files, content["revision"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(
            f"{path} is damaged ({error})",
            hint="remove the folder and pull the model again",
        ) from error


def check_against_checksums(folder: Path, files: Iterable[Path]) -> None:
    """Compare files with the checksums that lie beside them, if any do.

    A file that has not changed since the manifest confirmed it is not read again. Checksums of a
    SHA256SUMS file are recomputed every time.

    Raises:
        ChecksumError: a file differs; the message names it.
    """
    manifest = read_manifest(folder)
    sums = read_sums(folder)
    to_hash: dict[Path, str] = {}
    for path in files:
        name = path.name
        record = manifest.files.get(name) if manifest is not None else None
        if record is not None:
            status = path.stat()
            if status.st_size != record.num_bytes:
                raise ChecksumError(
                    f"{path} has {status.st_size} bytes instead of the {record.num_bytes} that "
                    "were pulled",
                    hint="pull the model again with --force",
                )
            if status.st_mtime_ns != record.mtime_ns:
                to_hash[path] = record.sha256
        elif name in sums:
            to_hash[path] = sums[name]
    compare_checksums(to_hash)


def compare_checksums(
    expected: Mapping[Path, str], on_bytes: Callable[[int], None] | None = None
) -> None:
    """Hash files, several at a time, and compare.

    Raises:
        ChecksumError: the first file, in the order given, that differs.
    """
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        actual = list(pool.map(lambda path: sha256_of(path, on_bytes), expected))
    for (path, promised), found in zip(expected.items(), actual, strict=True):
        if found != promised.lower():
            raise ChecksumError(
                f"{path} is not the file that was promised: its SHA-256 is {found}, expected is "
                f"{promised.lower()}",
                hint="it was damaged or exchanged; remove it and fetch it again",
            )


def read_sums(folder: Path) -> dict[str, str]:
    """Parse a SHA256SUMS file (`<hex>  <name>` a line) into name -> hex; {} where there is none."""
    path = folder / SUMS_NAME
    if not path.is_file():
        return {}
    sums = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        digest, _, name = line.partition(" ")
        name = name.strip().removeprefix("*").removeprefix("./")
        if len(digest) != 64 or not name:
            raise WeightsError(f"line {number} of {path} is not '<sha256>  <file name>': {line!r}")
        sums[name] = digest
    return sums
