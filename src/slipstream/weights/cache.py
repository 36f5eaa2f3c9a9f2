"""The folder where pulled models live, one folder a model, safe for several processes."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import WeightsError
from slipstream.weights.disk import disk_errors
from slipstream.weights.manifest import (
    Manifest,
    check_against_checksums,
    compare_checksums,
    read_manifest,
    write_manifest,
)
from slipstream.weights.progress import Progress, SilentProgress

_STAGING, _LOCKS, _OLD = ".staging", ".locks", ".old"
_READ_ONLY = 0o444


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source brought into its staging folder.

    Attributes:
        checksums: SHA-256 by path relative to the folder, for every file to keep.
        revision: The exact version at the source, if it has such a thing.
    """

    checksums: Mapping[str, str]
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache. `manifest` is None if it cannot be read; `problem` then says why."""

    folder: Path
    manifest: Manifest | None
    problem: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the files that were pulled."""
        records = self.manifest.files.values() if self.manifest is not None else ()
        return sum(record.num_bytes for record in records)

    def is_unchanged(self) -> bool:
        """Whether size and time of every file are those of its last verification."""
        if self.manifest is None:
            return False
        for name, record in self.manifest.files.items():
            try:
                status = (self.folder / name).stat()
            except FileNotFoundError:
                return False
            if (status.st_size, status.st_mtime_ns) != (record.num_bytes, record.mtime_ns):
                return False
        return True


class ModelCache:
    """Pulled models under `root`.

    A model's folder appears by one rename, complete and verified, with read-only files. Partial
    downloads stay in a staging folder, where the next attempt finds them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder_of(self, source: str) -> Path:
        """Where the model of this source lives, whether or not it is there."""
        readable = re.sub(r"[^A-Za-z0-9._=+-]+", "--", source)[:120]
        return self.root / f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"

    def find(self, source: str) -> Path | None:
        """The model's folder if it is there, its files compared with what was pulled.

        Raises:
            ChecksumError: a file is not the one that was pulled.
            WeightsError: the manifest is damaged or a file is gone.
        """
        folder = self.folder_of(source)
        manifest = read_manifest(folder)
        if manifest is None:
            return None
        files = [folder / name for name in manifest.files]
        _require_present(files)
        check_against_checksums(folder, files)
        return folder

    def pull(
        self,
        source: str,
        fetch: Callable[[Path], Fetched],
        progress: Progress,
        *,
        refresh: bool = False,
    ) -> Path:
        """The model's folder, fetched first if it is not there.

        Two processes that pull the same model: the second waits, then finds it there.

        Args:
            source: The source's name; decides the folder.
            fetch: Brings files into the staging folder it is given and verifies them.
            progress: Hears of the wait for another process.
            refresh: Fetch again and replace, even if the model is there.

        Raises:
            WeightsError, CapacityError: from `fetch`, from checking or from the file system.
        """
        if not refresh and (present := self.find(source)) is not None:
            return present
        folder = self.folder_of(source)
        staging = self.root / _STAGING / folder.name
        with disk_errors(self.root), self._locked(folder.name, progress):
            # A damaged copy is replaced here only on request: `find` reports it.
            if not refresh and (present := self.find(source)) is not None:
                return present
            staging.mkdir(parents=True, exist_ok=True)
            try:
                fetched = fetch(staging)
            finally:
                _remove_empty(staging)
            self._publish(staging, folder, source, fetched)
        return folder

    def entry(self, source: str) -> CachedModel | None:
        """The model of this source as it lies in the cache, unchecked; None if it does not."""
        folder = self.folder_of(source)
        return _inspect(folder) if folder.is_dir() else None

    def models(self) -> list[CachedModel]:
        """Everything in the cache, by folder name.

        Raises:
            WeightsError: `root` is no folder.
        """
        if self.root.exists() and not self.root.is_dir():
            raise WeightsError(
                f"{self.root} is a file; the cache is a folder",
                hint="set model.cache_dir to a folder, or remove the file",
            )
        if not self.root.is_dir():
            return []
        folders = (entry for entry in self.root.iterdir() if entry.is_dir())
        return [_inspect(folder) for folder in sorted(folders) if not folder.name.startswith(".")]

    def incomplete(self) -> dict[str, int]:
        """Bytes of downloads that were broken off, by the name of the folder they are for."""
        staging = self.root / _STAGING
        if not staging.is_dir():
            return {}
        sizes = {folder.name: _bytes_below(folder) for folder in sorted(staging.iterdir())}
        return {name: num_bytes for name, num_bytes in sizes.items() if num_bytes}

    def is_being_fetched(self, folder_name: str) -> bool:
        """Whether a process holds the lock of this model's folder."""
        try:
            with (self.root / _LOCKS / folder_name).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def remove(self, name: str) -> int:
        """Delete a model, and what was fetched of it by downloads that were broken off.

        A process that has its files mapped keeps them until it ends.

        Args:
            name: Its source, or the name of its folder, as `models` and `incomplete` give them.
        Returns: Bytes of the files that are gone; 0 if there was nothing of this name.
        Raises:
            WeightsError: A process is fetching it, or the files cannot be deleted.
        """
        folder_name = self._folder_name(name)
        places = (self.root / folder_name, self.root / _STAGING / folder_name)
        present = [folder for folder in places if folder.is_dir()]
        if present and self.is_being_fetched(folder_name):
            raise WeightsError(
                f"{name} is being fetched by another process",
                hint="wait for it, or stop it, and try again",
            )
        num_bytes = 0
        for folder in present:
            with disk_errors(self.root), self._locked(folder_name, SilentProgress()):
                num_bytes += _bytes_below(folder)
                old = self.root / _OLD / folder.name
                shutil.rmtree(old, ignore_errors=True)
                old.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(old)  # at once: nobody finds half a model
                shutil.rmtree(old)
        return num_bytes

    def _folder_name(self, name: str) -> str:
        """Of the model with this source, or of the folder with this name."""
        is_plain = "/" not in name and not name.startswith(".")
        present = (self.root, self.root / _STAGING)
        if is_plain and any((place / name).is_dir() for place in present):
            return name
        return self.folder_of(name).name

    def verify(self, model: CachedModel, on_bytes: Callable[[int], None] | None = None) -> None:
        """Recompute every checksum of a cached model.

        Raises:
            ChecksumError: a file differs.
            WeightsError: a file is gone or the manifest is damaged.
        """
        if model.manifest is None:
            raise WeightsError(
                f"{model.folder} has no usable manifest: {model.problem}",
                hint="remove the folder and pull the model again",
            )
        expected = {
            model.folder / name: record.sha256 for name, record in model.manifest.files.items()
        }
        _require_present(expected)
        compare_checksums(expected, on_bytes)

    def _publish(self, staging: Path, folder: Path, source: str, fetched: Fetched) -> None:
        kept = {staging / name for name in fetched.checksums}
        needed = kept | {folder for path in kept for folder in path.parents}
        for path in list(staging.rglob("*")):
            if path not in needed and path.is_dir():
                shutil.rmtree(path)
            elif path not in needed:
                path.unlink(missing_ok=True)  # its folder may be gone already
        for name in fetched.checksums:
            (staging / name).chmod(_READ_ONLY)
        write_manifest(staging, source, fetched.checksums, fetched.revision)
        if folder.exists():
            old = self.root / _OLD / folder.name
            shutil.rmtree(old, ignore_errors=True)
            old.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(old)
            staging.rename(folder)
            # Not before the new one stands; whoever has the old files mapped keeps them.
            shutil.rmtree(old, ignore_errors=True)
        else:
            staging.rename(folder)

    @contextmanager
    def _locked(self, name: str, progress: Progress) -> Iterator[None]:
        """Hold the model's lock; the kernel frees it even if the process is killed."""
        locks = self.root / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.begin("waiting for another process that fetches this model", None)
                fcntl.flock(lock, fcntl.LOCK_EX)
                progress.end()
            yield


def _remove_empty(staging: Path) -> None:
    """Leave no staging folder behind that holds nothing to resume from."""
    if not any(path.is_file() for path in staging.rglob("*")):
        shutil.rmtree(staging, ignore_errors=True)


def _bytes_below(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:  # another process is finishing this download
        return 0


def _inspect(folder: Path) -> CachedModel:
    try:
        manifest = read_manifest(folder)
    except WeightsError as error:
        return CachedModel(folder, None, error.message)
    return CachedModel(folder, manifest, None if manifest else "it has no manifest")


def _require_present(files: Iterable[Path]) -> None:
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise WeightsError(
            f"{', '.join(missing)} was pulled and is no longer in the cache",
            hint="pull the model again with --force",
        )
