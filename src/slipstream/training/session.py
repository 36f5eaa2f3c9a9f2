"""The parts of a run put together: target, answers, features, net and trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from slipstream.engine.loading import LoadedModel
from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.identity import TargetIdentity, identify
from slipstream.training.dataset import Dataset
from slipstream.training.families.table import FAMILIES
from slipstream.training.nets import TrainedNet, bare_net, new_net
from slipstream.training.run_folder import Progress, RunFolder, RunRecord, save_tensors, write_text
from slipstream.training.settings import RunSettings
from slipstream.training.shards import CachedSource, read_cache_manifest
from slipstream.training.sources import FeatureSource, OnlineSource
from slipstream.training.start import FixedParts, Lessons, Start
from slipstream.training.target import TargetReader, read_ends

DEFAULT_NUM_TOP = 64
_FIXED_FILE, _SHAPE_FILE = "fixed.safetensors", "net.json"


@dataclass(frozen=True, slots=True)
class TrainingTarget:
    """The target of a run.

    Attributes:
        source: Name under which others find it.
    """

    loaded: LoadedModel
    identity: TargetIdentity
    source: str

    @staticmethod
    def of(loaded: LoadedModel, source: str) -> TrainingTarget:
        """Of a loaded model."""
        return TrainingTarget(loaded, identify(loaded.name, loaded.model), source)

    def start(self, fixed: FixedParts, ends: StoredEnds, lessons: Lessons | None = None) -> Start:
        """What the nets of a run are made from.

        Args:
            ends: The target's, see `read_ends`.
        """
        return Start(self.loaded.model.final_norm.scale.float(), ends, fixed, lessons)


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """A run's net as its last checkpoint has it."""

    path: Path
    record: RunRecord
    fixed: FixedParts
    net: TrainedNet
    progress: Progress


def longest(dataset: Dataset) -> int:
    """Tokens of the longest prompt with its answer."""
    return max((len(a.prompt_ids) + len(a.response_ids) for a in dataset.answers), default=1)


def open_source(
    target: TrainingTarget,
    dataset: Dataset,
    tap_layer_ids: Sequence[int],
    cache: Path | None,
) -> FeatureSource:
    """Features from a cache, which verifies them as it reads, or from the target itself.

    Raises:
        WeightsError: The cache lacks these taps, or is of something else.
        ChecksumError: A shard has another length than it had; names it.
    """
    if cache is None:
        reader = TargetReader(
            target.loaded, tap_layer_ids, DEFAULT_NUM_TOP, max_len=longest(dataset)
        )
        return OnlineSource(reader, dataset.answers)
    cached = read_cache_manifest(cache).tap_layer_ids
    if cached != tuple(tap_layer_ids):
        raise WeightsError(
            f"{cache} holds taps of layers {', '.join(map(str, cached))}, but the net reads "
            f"{', '.join(map(str, tap_layer_ids))}",
            hint="leave out --taps to use those of the cache, or make another cache",
        )
    return CachedSource(cache, target.identity, dataset.answers, dataset.manifest.sha256)


def start_net(
    settings: RunSettings,
    target: TrainingTarget,
    fixed: FixedParts,
    lessons: Lessons | None = None,
) -> TrainedNet:
    """A net with the weights that a run begins with; see `new_net`."""
    start = target.start(fixed, read_ends(target.loaded), lessons)
    return new_net(settings.net, target.loaded.model.hparams, start, settings.fit.seed)


def write_shape(folder: RunFolder, hparams: DraftHparams) -> None:
    """Keep the shape of a run's net, of which its settings say only a part."""
    kind = TypeAdapter(type(hparams))
    write_text(folder.path / _SHAPE_FILE, kind.dump_json(hparams, indent=1).decode() + "\n")


def write_fixed(folder: RunFolder, fixed: FixedParts) -> None:
    """Keep what stays through a run."""
    tensors = {"token_ids": fixed.token_ids, "tap_scales": fixed.tap_scales}
    save_tensors(folder.path / _FIXED_FILE, tensors)


def restore_run(path: Path, target: TrainingTarget) -> RestoredRun:
    """The net of a run's last checkpoint.

    Raises:
        WeightsError: There is no run or no checkpoint, it is damaged, or it is another target's.
    """
    folder = RunFolder(path)
    record = folder.read()
    target.identity.require_same(record.target, f"the drafter in {path}")
    saved = folder.newest()
    if saved is None:
        raise WeightsError(
            f"{path} has no checkpoint yet", hint="let `slipstream train fit` run longer"
        )
    progress, tensors = saved
    try:
        fixed = FixedParts(**load_file(path / _FIXED_FILE))
    except (OSError, TypeError, SafetensorError) as error:
        raise WeightsError(f"{path / _FIXED_FILE} cannot be read: {error}") from error
    hparams = _read_shape(path, record.settings, target)
    start = target.start(fixed, read_ends(target.loaded))
    net = bare_net(hparams, record.settings.net, start, record.settings.fit.seed)
    with torch.no_grad():
        for name, parameter in net.trained().items():
            parameter.copy_(tensors[f"parameter/{name}"])
    return RestoredRun(path, record, fixed, net, progress)


def _read_shape(path: Path, settings: RunSettings, target: TrainingTarget) -> DraftHparams:
    file = path / _SHAPE_FILE
    usual: DraftHparams = FAMILIES[settings.net.family].hparams(
        settings.net, target.loaded.model.hparams
    )
    if not file.exists():  # of a run that began before shapes were kept
        return usual
    try:
        shape: DraftHparams = TypeAdapter(type(usual)).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise WeightsError(
            f"{file} cannot be read: {error}", hint="train the run anew, in another folder"
        ) from error
    return shape
