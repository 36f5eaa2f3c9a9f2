"""A folder that an export is written into: whole or not at all, and never over something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.models.drafts.calibration import CALIBRATION_FILE
from slipstream.models.drafts.origin import PEAKS_FIELD, PROVENANCE_FILE
from slipstream.weights.disk import disk_errors

_STAGING = ".export.partial"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_DISK_HINT = "free some space or give another --out, then run the same command again"
_HINT = "give another --out, or remove this folder if nothing needs it"


@contextmanager
def export_folder(
    path: Path, weights_name: str, *, is_speculators: bool, is_runs_own: bool
) -> Iterator[Path]:
    """Give a folder to write an export into; its files move to `path` when all are there.

    Args:
        weights_name: The file of weights that the export has.
        is_speculators: Whether config.json is of that layout.
        is_runs_own: The folder belongs to a run, which is all that writes there.
    Raises:
        ConfigError: `path` holds other weights than an export of this layout, which is replaced.
        CapacityError: The disk is full; what was in `path` stays.
        WeightsError: `path` cannot be written to.
    """
    staging = path / _STAGING
    with disk_errors(path, _DISK_HINT):
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        _require_replaceable(path, weights_name, is_speculators, is_runs_own)
        try:
            if staging.exists():  # of a process that was killed
                shutil.rmtree(staging)
            staging.mkdir()
            yield staging
            (path / CALIBRATION_FILE).unlink(missing_ok=True)  # of the net that is replaced
            # The story is first: it says that what is there is an export, if this ends half-way.
            for file in sorted(staging.iterdir(), key=lambda file: file.name != PROVENANCE_FILE):
                file.replace(path / file.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if is_new and not any(path.iterdir()):
                path.rmdir()


def _require_replaceable(
    path: Path, weights_name: str, is_speculators: bool, is_runs_own: bool
) -> None:
    present = sorted(file.name for file in path.iterdir() if file.suffix in _WEIGHTS)
    others = [name for name in present if name != weights_name]
    if others:
        raise ConfigError(
            f"{path} holds other weights, {', '.join(others)}, which would lie beside "
            f"{weights_name} of this export",
            hint=_HINT,
        )
    if not present or is_runs_own:
        return
    story = _json_object(path / PROVENANCE_FILE)
    if "run" not in story and PEAKS_FIELD not in story:
        raise ConfigError(
            f"{path / weights_name} is no export of a run, so that it is not replaced", hint=_HINT
        )
    config = _json_object(path / "config.json")
    if weights_name.endswith(".safetensors") and is_speculators != (
        "speculators_model_type" in config
    ):
        raise ConfigError(f"{path} holds an export in another layout", hint=_HINT)


def _json_object(file: Path) -> dict[str, object]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
