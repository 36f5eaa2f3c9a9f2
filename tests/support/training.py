"""Tiny targets, answers and runs for tests of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.clock import ManualClock
from slipstream.config.model import ModelConfig
from slipstream.engine.loading import load_target
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.training.acceptance import AcceptanceTally
from slipstream.training.answers import Answer, append_answers
from slipstream.training.dataset import ANSWERS_FILE, Dataset, open_dataset, write_manifest
from slipstream.training.families.table import FAMILIES as TRAINED
from slipstream.training.fit import Intervals, Reporting
from slipstream.training.nets import TrainedNet
from slipstream.training.session import TrainingTarget, open_source, start_net
from slipstream.training.settings import FitSettings, NetSettings, RunSettings
from slipstream.training.start import FixedParts
from slipstream.training.trainer import Trainer
from slipstream.training.workers import SingleWorker, Workers
from tests.support.tiny_llm import write_tiny_model

FAMILIES: tuple[DraftFamily, ...] = ("dspark", "eagle3", "mtp", "dflash", "dflash2")
VOCAB_SIZE = 320
MASK_ID = 319
PACK_LEN = 48


def tiny_target(
    path: Path,
    seed: int = 1,
    **sizes: Any,  # as in write_tiny_model
) -> TrainingTarget:
    """A loaded float32 target of random weights."""
    folder = write_tiny_model(path / f"target-{seed}", seed=seed, **sizes)
    config = ModelConfig(source=str(folder), dtype="float32", served_name=f"target-{seed}")
    return TrainingTarget.of(load_target(config), str(folder))


def counting_answers(count: int, seed: int = 0) -> list[Answer]:
    """Answers that count upwards from a token of the prompt: easy to learn."""
    generator = torch.Generator().manual_seed(seed)
    answers = []
    for number in range(count):
        first, length, prompt_len = (
            int(torch.randint(low, high, (1,), generator=generator))
            for low, high in ((10, 40), (12, 30), (2, 12))
        )
        prompt = [*range(200, 200 + prompt_len - 1), first]
        answers.append(
            Answer(
                prompt_id=f"prompt-{number}",
                category="even" if number % 2 == 0 else "odd",
                temperature=float(number % 2),
                prompt_ids=tuple(prompt),
                response_ids=(*range(first + 1, first + length), 2),
                finish="stop",
            )
        )
    return answers


def write_dataset(
    path: Path, target: TrainingTarget, answers: Sequence[Answer], share: float = 0.25
) -> Dataset:
    """A folder of answers, opened."""
    path.mkdir(parents=True, exist_ok=True)
    append_answers(path / ANSWERS_FILE, answers)
    write_manifest(path, target.identity, share, ["a test"], Counter())
    return open_dataset(path, target.identity)


def tiny_settings(
    family: DraftFamily,
    net: dict[str, Any] | None = None,  # Any: fields of different types
    **fit: Any,  # Any: fields of FitSettings
) -> RunSettings:
    """Settings that train in a second."""
    net_fields: dict[str, Any] = {
        "family": family,
        "num_layers": 1,
        "tap_layer_ids": (1,) if family == "mtp" else (0, 1),
        "max_draft_len": 3,
        "draft_vocab_size": 96,
        "intermediate_size": 48,
        "mask_token_id": MASK_ID,
        "trains_head": family == "eagle3",
        "markov_rank": 8,
        "selector_rank": 8,
        "selector_top_k": 4,
    }
    fit_fields: dict[str, Any] = {
        "pack_len": PACK_LEN,
        "step_packs": 4,
        "num_anchors": 12,
        "num_steps": 6,
        "learning_rate": 0.05,
        "dtype": "float32",
    }
    return RunSettings(
        net=NetSettings.model_validate(net_fields | (net or {})),
        losses=TRAINED[family].losses,
        fit=FitSettings.model_validate(fit_fields | fit),
    )


def known_tokens(settings: RunSettings) -> torch.Tensor:
    """The draft's vocabulary: the tokens that counting answers use, and others."""
    size = settings.net.draft_vocab_size
    return torch.arange(VOCAB_SIZE) if size == VOCAB_SIZE else torch.arange(size)


def fixed_parts(settings: RunSettings) -> FixedParts:
    """The draft's vocabulary and scales that are not all alike."""
    num_channels = 32 * len(settings.net.tap_layer_ids)
    return FixedParts(known_tokens(settings), torch.linspace(0.5, 2.0, num_channels))


def tiny_net(settings: RunSettings, target: TrainingTarget) -> TrainedNet:
    """A net whose additions to DFlash do something, unlike at the start of a training."""
    net = start_net(settings, target, fixed_parts(settings))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in sorted(net.trained().items()):
            parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    return net


def trainer_of(
    settings: RunSettings,
    target: TrainingTarget,
    dataset: Dataset,
    workers: Workers | None = None,
    net: TrainedNet | None = None,
) -> Trainer:
    """A trainer at its beginning, the target asked for its states online."""
    net = net or start_net(settings, target, fixed_parts(settings))
    source = open_source(target, dataset, settings.net.tap_layer_ids, None)
    objective = net.objective(settings)
    return Trainer(net, objective, settings.fit, source, dataset.answers, workers or SingleWorker())


@dataclass
class QuietReporting:
    """Nobody is told; the process ends, as if it were killed, behind a step.

    Attributes:
        dies_after: Steps after which it ends; None is never.
    """

    dies_after: int | None = None

    def reporting(self, every: int = 2) -> Reporting:
        """What `fit` takes."""
        intervals = Intervals(score=every, held_out=every, checkpoint=every)
        return Reporting(intervals, self._on_step, lambda *_: None, ManualClock())

    def _on_step(self, step: int, *_: float) -> None:
        if step == self.dies_after:
            raise KeyboardInterrupt


def empty_tally(settings: RunSettings) -> AcceptanceTally:
    """Nothing counted yet."""
    return AcceptanceTally.empty(settings.net.max_draft_len)
