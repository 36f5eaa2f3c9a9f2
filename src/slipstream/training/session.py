"""The parts of a run put together: target, answers, features, net and trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream.engine.loading import LoadedModel
from slipstream.errors import ConfigError, WeightsError
from slipstream.models.identity import TargetIdentity, identify
from slipstream.training.answers import Answer
from slipstream.training.dataset import Dataset
from slipstream.training.draft_vocab import select_draft_tokens
from slipstream.training.nets import TrainedNet, new_net, take_over
from slipstream.training.run_folder import Progress, RunFolder, RunRecord, differences
from slipstream.training.settings import RunSettings
from slipstream.training.shards import CachedSource, read_cache_manifest
from slipstream.training.sources import FeatureSource, OnlineSource
from slipstream.training.start import FixedParts, Lessons, Start
from slipstream.training.target import TargetReader, read_ends

DEFAULT_NUM_TOP = 64
_FIXED_FILE = "fixed.safetensors"
_GROWING = ("num_layers", "intermediate_size", "draft_vocab_size")


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


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """A run's net as its last checkpoint has it."""

    path: Path
    record: RunRecord
    fixed: FixedParts
    net: TrainedNet
    progress: Progress

    @property
    def weights_sha256(self) -> str:
        """Of the weights that were trained."""
        digest = hashlib.sha256()
        for name, parameter in self.net.trained().items():
            digest.update(name.encode())
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


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
    model = target.loaded.model
    final_norm = model.final_norm.scale.float()
    start = Start(final_norm, read_ends(target.loaded), fixed, lessons)
    return new_net(settings.net, model.hparams, start, settings.fit.seed)


def restore_start(
    path: Path, target: TrainingTarget, settings: RunSettings, answers: Sequence[Answer]
) -> RestoredRun:
    """The run in `path`, for a new one with `settings` to start with its weights.

    The new net may have more layers, a wider MLP and more tokens; see `take_over`.

    Args:
        answers: Their most frequent tokens are those that the net knows beside the old ones.
    Raises:
        ConfigError: Its net has another shape; says which.
        WeightsError: As `restore_run`.
    """
    run = restore_run(path, target)
    old, new = run.record.settings.net, settings.net
    sizes = {name: max(getattr(old, name), getattr(new, name)) for name in _GROWING}
    differing = differences(old.model_copy(update=sizes).model_dump(), new.model_dump())
    if differing:
        raise ConfigError(
            f"the net in {path} differs from the one to train in {'; '.join(differing)}",
            hint="give the options that it was trained with, or leave out --start-from; only "
            "--layers, --intermediate and --draft-vocab may grow",
        )
    always = run.fixed.token_ids.tolist()
    size, vocab_size = new.draft_vocab_size, target.identity.vocab_size
    fixed = replace(run.fixed, token_ids=select_draft_tokens(answers, vocab_size, size, always))
    net = start_net(settings, target, fixed)
    take_over(net, run.net)
    return replace(run, fixed=fixed, net=net)


def write_fixed(folder: RunFolder, fixed: FixedParts) -> None:
    """Keep what stays through a run."""
    tensors = {"token_ids": fixed.token_ids, "tap_scales": fixed.tap_scales}
    save_file(tensors, folder.path / _FIXED_FILE)


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
    net = start_net(record.settings, target, fixed)
    with torch.no_grad():
        for name, parameter in net.trained().items():
            parameter.copy_(tensors[f"parameter/{name}"])
    return RestoredRun(path, record, fixed, net, progress)
