"""The folder of a training run: what it is, where it stands, what came of it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.errors import ConfigError, WeightsError
from slipstream.models.identity import TargetIdentity
from slipstream.training.settings import RunSettings
from slipstream.weights.disk import disk_errors, replace_text
from slipstream.weights.layout import RUN_FILE

_CHECKPOINTS = "checkpoints"
_STATE_FILE, _TENSORS_FILE = "state.json", "tensors.safetensors"
_NUM_KEPT = 2
_DISK_HINT = (
    "free some space or use another folder, then run the same command again: a training goes on "
    "from its last checkpoint"
)
_HINT = "remove the damaged checkpoint's folder to go on from the one before, or the whole run"


class RunRecord(BaseModel):
    """What a run is; the same command goes on with it, another one is refused.

    Attributes:
        dataset_sha256: Of the answers that it is trained on.
        start_sha256: Of the weights that it starts with, if they are those of another net.
        start_from: What that net was called: a path, or the name of a drafter that is shipped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    target: TargetIdentity
    dataset_sha256: str
    settings: RunSettings
    start_sha256: str | None = None
    start_from: str | None = None


class Score(BaseModel):
    """One line of a run's history.

    Attributes:
        loss: Mean over the rows of the steps since the line before.
        sampled_length, greedy_length: See `AcceptanceTally`.
        held_out_loss, held_out_sampled, held_out_greedy: The same of answers that are not trained
            on, where they were measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    learning_rate: float
    loss: float
    sampled_length: float
    greedy_length: float
    held_out_loss: float | None = None
    held_out_sampled: float | None = None
    held_out_greedy: float | None = None


class Progress(BaseModel):
    """Where a run stands; everything random follows from the step and the seed.

    Attributes:
        num_tokens: Answer tokens trained on, repetitions included.
        seconds: Time that training took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    history: tuple[Score, ...] = ()


class RunFolder:
    """Reads and writes the folder of a run.

    Args:
        path: The folder; it is made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, record: RunRecord) -> None:
        """Make the run's record, or check that the folder holds this very run.

        Raises:
            ConfigError: It holds another run; says what differs.
            WeightsError: It cannot be written to.
        """
        file = self.path / RUN_FILE
        if not file.exists():
            with disk_errors(self.path, _DISK_HINT):
                self.path.mkdir(parents=True, exist_ok=True)
            write_text(file, record.model_dump_json(indent=1) + "\n")
            return
        # The weights that it starts with are the same wherever they lie.
        old, new = (item.model_dump(exclude={"start_from"}) for item in (self.read(), record))
        differing = differences(old, new)
        if differing:
            raise ConfigError(
                f"{self.path} holds a run that differs in {'; '.join(differing)}",
                hint="give the same options to go on with it, or another --out",
            )

    def read(self) -> RunRecord:
        """The run's record.

        Raises:
            WeightsError: There is none, or it is damaged.
        """
        try:
            return RunRecord.model_validate_json((self.path / RUN_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            raise WeightsError(
                f"{self.path} is no training run: {RUN_FILE} cannot be read",
                hint="make one with `slipstream train fit --out DIR`",
            ) from error

    def save(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Add a checkpoint, whole or not at all, and remove all but the last few.

        Raises:
            CapacityError: The disk is full; the checkpoints before are kept.
            WeightsError: The folder cannot be written to.
        """
        folder = self.path / _CHECKPOINTS
        name = f"step-{progress.step:07d}"
        staging = folder / f"{name}.partial"
        try:
            with disk_errors(folder, _DISK_HINT):
                if staging.exists():
                    shutil.rmtree(staging)
                staging.mkdir(parents=True)
                contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
                save_tensors(staging / _TENSORS_FILE, contiguous)
                write_text(staging / _STATE_FILE, progress.model_dump_json(indent=1) + "\n")
                if (folder / name).exists():
                    shutil.rmtree(folder / name)
                staging.rename(folder / name)
                for old in self._checkpoints()[:-_NUM_KEPT]:
                    shutil.rmtree(old)
        finally:
            shutil.rmtree(staging, ignore_errors=True)  # half a checkpoint only fills the disk

    def newest(self) -> tuple[Progress, dict[str, Tensor]] | None:
        """The last complete checkpoint; None before the first.

        Raises:
            WeightsError: It is damaged; names it.
        """
        folders = self._checkpoints()
        if not folders:
            return None
        folder = folders[-1]
        try:
            progress = Progress.model_validate_json((folder / _STATE_FILE).read_bytes())
            return progress, load_file(folder / _TENSORS_FILE)
        except (OSError, ValidationError, SafetensorError) as error:
            raise WeightsError(f"checkpoint {folder} is damaged: {error}", hint=_HINT) from error

    def _checkpoints(self) -> list[Path]:
        found = (self.path / _CHECKPOINTS).glob("step-*")
        return sorted(path for path in found if path.suffix != ".partial")


def write_text(path: Path, text: str) -> None:
    """Replace a file at once.

    Raises:
        CapacityError: The disk is full; the file that was there is kept.
        WeightsError: The folder cannot be written to.
    """
    with disk_errors(path.parent, _DISK_HINT):
        replace_text(path, text)


def save_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Replace a file of tensors at once; see `write_text`."""
    staging = path.with_name(f"{path.name}.partial")
    with disk_errors(path.parent, _DISK_HINT):
        try:
            save_file(tensors, staging, metadata)
            staging.replace(path)
        except SafetensorError as error:  # it tells the system's error in words only
            number = re.search(r"\(os error (\d+)\)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from error
        finally:
            staging.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Replace a file of JSON at once."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def differences(old: object, new: object, name: str = "") -> list[str]:
    """Where two records of JSON values differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        parts = (
            differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            for key in keys
        )
        return [difference for part in parts for difference in part]
    return [] if old == new else [f"{name} ({old} there, {new} now)"]
