"""A net that exists already: in a run, a checkpoint, this package, or where models come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from slipstream.config.model import ModelConfig
from slipstream.config.speculation import SHIPPED_SOURCE
from slipstream.engine.loading import kind_of, require_same_tokenizer
from slipstream.engine.shipped import shipped_file
from slipstream.errors import ConfigError, WeightsError
from slipstream.models.drafts.catalog import FOLDER, read_shipped
from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.origin import require_origin
from slipstream.models.drafts.parts import StoredEnds
from slipstream.training.families.family import HEAD
from slipstream.training.families.table import family_for
from slipstream.training.nets import TrainedNet, net_of
from slipstream.training.run_folder import RunFolder, differences
from slipstream.training.served import ServedNet
from slipstream.training.session import TrainingTarget, restore_run
from slipstream.training.settings import FitSettings, NetSettings, RunSettings
from slipstream.training.start import FixedParts
from slipstream.training.stored_nets import StoredNet, describe_net, read_net
from slipstream.training.target import read_ends
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.layout import DRAFT_FOLDER, RUN_FILE, no_drafter_yet, require_ended
from slipstream.weights.open import open_checkpoint
from slipstream.weights.progress import SilentProgress
from slipstream.weights.sources import is_remote, resolve_source

_GROWING = ("num_layers", "intermediate_size", "draft_vocab_size", "trains_head")
_NO_CONFIG = ModelConfig()
_RATE = 1e-3  # of nobody: a net that is only measured takes no step


@dataclass(frozen=True, slots=True)
class GivenNet:
    """A net to go on from, or to measure.

    Attributes:
        name: How it was asked for: a path, or the name of a drafter that is shipped.
        settings: Those of its run; of a checkpoint what its shape says, and else the family's.
        tap_scales: See `FixedParts`; None where nobody has measured them.
    """

    name: str
    settings: RunSettings
    net: TrainedNet
    tap_scales: Tensor | None

    @property
    def sha256(self) -> str:
        """Of the weights that are trained."""
        digest = hashlib.sha256()
        for name, parameter in self.net.trained().items():
            digest.update(name.encode())
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()

    def require_room(self, wanted: NetSettings) -> None:
        """Refuse settings of a net that this one is neither like nor a smaller one of.

        Raises:
            ConfigError: Says what differs.
        """
        old, new = self.settings.net.model_dump(), wanted.model_dump()
        shape = family_for(self.net.hparams).settings_of(self.net.hparams)
        grown = {name: max(old[name], new[name]) for name in _GROWING}
        names = {*shape, *_GROWING}
        differing = differences(_only(old | grown, names), _only(new, names))
        if differing:
            raise ConfigError(
                f"the net in {self.name} differs from the one to train in {'; '.join(differing)}",
                hint="leave out the options that differ, or --start-from; only --layers, "
                "--intermediate and --draft-vocab may grow",
            )


def open_given(name: str, target: TrainingTarget, model: ModelConfig = _NO_CONFIG) -> GivenNet:
    """The net of a run or of a checkpoint, or the shipped one of this name.

    Args:
        name: A path, a shipped drafter's name, or a source as `model.source` takes it.
        model: Says where what is fetched is kept.
    Raises:
        ConfigError: There is nothing of that name.
        WeightsError: It is damaged, cannot be had or trained, or is another target's.
    """
    if name in _shipped_kinds(name):
        path = shipped_file(name, target.identity)
    else:
        path = _path_of(name, model)
    if _is_run(path):
        run = restore_run(path, target)
        return GivenNet(name, run.record.settings, run.net, run.fixed.tap_scales)
    checkpoint = _open(path)
    require_same_tokenizer(checkpoint, target.loaded.tokenizer)
    require_origin(checkpoint.path, target.identity)
    ends = read_ends(target.loaded)
    stored = read_net(checkpoint, target.loaded, ends)
    settings = _settings_of(stored.hparams, name)
    net = _as_trained(stored, target, ends, trains_head=settings.net.trains_head)
    return GivenNet(name, settings, net, None)


def find_served(name: str, model: ModelConfig = _NO_CONFIG) -> ServedNet:
    """The same as an engine is told of it; no target is needed.

    Raises:
        ConfigError, WeightsError: As `open_given`.
    """
    if name in _shipped_kinds(name):
        # Which it is depends on the target; the engine knows, and drafts no longer than it can.
        files = [FOLDER / item.file for item in read_shipped().drafters if item.kind == name]
        return ServedNet(name, SHIPPED_SOURCE, max(_served(file).draft_len for file in files))
    path = _path_of(name, model)
    if _is_run(path):
        net = RunFolder(path).read().settings.net
        if not (path / DRAFT_FOLDER).exists():
            raise no_drafter_yet(path)
        return ServedNet(kind_of(net.family), str(path / DRAFT_FOLDER), net.max_draft_len)
    return _served(path)


def _is_run(path: Path) -> bool:
    return (path / RUN_FILE).exists()


def _shipped_kinds(name: str) -> tuple[str, ...]:
    """Names of shipped drafters; none where a path of this name exists, which wins."""
    return () if Path(name).exists() else read_shipped().kinds


def _path_of(name: str, model: ModelConfig) -> Path:
    path = Path(name)
    if path.exists():
        return path
    require_ended(path)
    if not is_remote(name):
        raise ConfigError(
            f"{name} does not exist, and no drafter of that name is shipped; shipped are "
            f"{', '.join(read_shipped().kinds)}",
            hint="give the folder of a run, the folder or .gguf file of a drafter, its hub id, or "
            "one of these names",
        )
    source = ModelConfig(source=name, cache_dir=model.cache_dir)
    try:
        return resolve_source(source, progress=SilentProgress())
    except WeightsError as error:
        raise WeightsError(f"{name} is no path here; {error}", hint=error.hint) from error


def _open(path: Path) -> Checkpoint:
    if path.is_dir() and not any([*path.glob("*.gguf"), *path.glob("*.safetensors")]):
        raise WeightsError(
            f"{path} is no training run and holds no drafter: it has neither {RUN_FILE} nor "
            "weights",
            hint="make a run with `slipstream train fit --out DIR`, or give a drafter's folder",
        )
    return open_checkpoint(path)


def _served(path: Path) -> ServedNet:
    hparams = describe_net(_open(path))
    family = family_for(hparams)
    return ServedNet(kind_of(family.name), str(path), family.served_draft_len(hparams))


def _settings_of(hparams: DraftHparams, name: str) -> RunSettings:
    """What the net's shape says; the rest is its family's.

    Raises:
        WeightsError: It is one that no training has.
    """
    family = family_for(hparams)
    usual = {
        "max_draft_len": family.max_draft_len,
        "mask_token_id": 0,
        "trains_head": hparams.has_own_head,
    }
    try:
        family.require_trainable(hparams)
        return RunSettings(
            net=NetSettings.model_validate(usual | family.settings_of(hparams)),
            losses=family.losses,
            fit=FitSettings(num_steps=1, learning_rate=_RATE),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WeightsError(
            f"the net in {name} cannot be trained: its {first['loc'][0]} is {first['input']}; "
            f"{first['msg']}",
            hint="measure it with `slipstream train eval --prompts`, or train a new one",
        ) from error


def _as_trained(
    stored: StoredNet, target: TrainingTarget, ends: StoredEnds, *, trains_head: bool
) -> TrainedNet:
    hparams, token_ids = stored.hparams, stored.token_ids
    known = torch.arange(hparams.draft_vocab_size) if token_ids is None else token_ids
    scales = torch.ones(hparams.num_taps * hparams.target_hidden_size)
    start = target.start(FixedParts(known, scales), ends)
    parameters = dict(stored.parameters)
    if HEAD not in parameters:
        parameters[HEAD] = ends.vocabulary[known].float()
    parameters |= family_for(hparams).constants(start)
    net = net_of(replace(hparams, has_own_head=True), parameters, start, trains_head=trains_head)
    return replace(net, token_ids=token_ids)


def _only(fields: Mapping[str, Any], names: set[str]) -> dict[str, Any]:  # Any: setting values
    return {name: value for name, value in fields.items() if name in names}
