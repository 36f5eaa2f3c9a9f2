"""Weights that are already on this machine."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import WeightsError
from slipstream.weights.manifest import compare_checksums
from slipstream.weights.progress import Progress


class LocalSource:
    """A file or folder; nothing is copied."""

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        self._path = path
        self._sha256 = sha256

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def resolve(self, progress: Progress, *, refresh: bool = False) -> Path:
        """The path itself, once its checksum, if one was given, is right."""
        if not self._path.exists():
            raise WeightsError(f"{self._path} does not exist")
        if self._sha256 is not None:
            path = single_weights_file(self._path)
            progress.begin(f"checking {path.name}", path.stat().st_size)
            try:
                compare_checksums({path: self._sha256}, progress.advance)
            finally:
                progress.end()
        return self._path


def single_weights_file(path: Path) -> Path:
    """The one weights file that a `model.sha256` can be about.

    Raises:
        WeightsError: there are none or several.
    """
    if path.is_file():
        return path
    files = [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    if len(files) != 1:
        raise WeightsError(
            f"model.sha256 is the checksum of one file, but {path} has {len(files)} weights files",
            hint="put a SHA256SUMS file into the folder instead",
        )
    return files[0]
