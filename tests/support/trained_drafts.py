"""Tiny draft nets that have learned a tiny target's answers by heart, so that they are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.config.model import ModelConfig
from slipstream.doctor.forced import ForcedText
from slipstream.engine.loading import load_target
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.models.drafts.load import AnyDraftNet, load_draft
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import Answer
from slipstream.training.draft_files import our_config, write_draft_folder
from slipstream.training.nets import TrainedNet
from slipstream.training.packing import arrange, cut_answers
from slipstream.training.session import (
    TrainingTarget,
    open_source,
    start_net,
)
from slipstream.training.start import FixedParts
from slipstream.training.target import TargetReader
from slipstream.training.trainer import Trainer
from slipstream.training.workers import SingleWorker
from slipstream.weights.open import open_checkpoint
from tests.support.tiny_llm import tiny_llm, write_tiny_model
from tests.support.training import VOCAB_SIZE, empty_tally, tiny_settings, write_dataset

NUM_LAYERS, HIDDEN_SIZE, TAPS = 4, 32, (1, 2)
NUM_DRAFTS, MAX_TOKENS = 3, 36
WORDS = ("ab", "cde", "Fg", "hij k", "o")
_PACK_LEN, _NUM_STEPS, _PASS_PACKS = 72, 120, 8


@dataclass(frozen=True, slots=True)
class TaughtTarget:
    """A target with what it says to `WORDS`.

    Attributes:
        source: Its folder.
        texts: Prompts with answers, and the states of all layers along them.
    """

    source: Path
    target: TrainingTarget
    answers: tuple[Answer, ...]
    texts: tuple[ForcedText, ...]


def teach_target(path: Path) -> TaughtTarget:
    """Load a target and let it answer."""
    source = write_tiny_model(path / "model", num_layers=NUM_LAYERS)
    with tiny_llm(source) as llm:
        prompts = [llm.render([{"role": "user", "content": word}]) for word in WORDS]
        params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        generations = llm.generate(prompts, params)
    answers = tuple(
        Answer(
            prompt_id=f"prompt-{number}",
            temperature=0.0,
            prompt_ids=tuple(prompt),
            response_ids=tuple(generation.token_ids),
            finish="length",
        )
        for number, (prompt, generation) in enumerate(zip(prompts, generations, strict=True))
    )
    config = ModelConfig(source=str(source), dtype="float32")
    target = TrainingTarget.of(load_target(config), str(source))
    layer_ids = tuple(range(-1, NUM_LAYERS))
    reader = TargetReader(target.loaded, layer_ids, num_top=1, max_len=_PACK_LEN)
    texts = tuple(
        ForcedText(
            torch.tensor(answer.prompt_ids + answer.response_ids),
            len(answer.prompt_ids),
            dict(zip(layer_ids, features.taps.chunk(len(layer_ids), -1), strict=True)),
        )
        for answer, features in zip(answers, reader.read(answers), strict=True)
    )
    return TaughtTarget(source, target, answers, texts)


def teach_net(
    family: DraftFamily, taught: TaughtTarget, path: Path, *, is_reduced: bool
) -> TrainedNet:
    """Train a net until it knows the answers by heart; some seconds.

    Args:
        path: Where the answers are written for it.
        is_reduced: Whether its vocabulary holds only the tokens that the target has said.
    """
    said = {token for answer in taught.answers for token in answer.response_ids}
    token_ids = torch.tensor(sorted(said)) if is_reduced else torch.arange(VOCAB_SIZE)
    net_fields = {"tap_layer_ids": TAPS, "draft_vocab_size": len(token_ids), "mask_token_id": 0}
    settings = tiny_settings(
        family,
        net_fields | {"trains_head": False, "max_draft_len": NUM_DRAFTS},
        pack_len=_PACK_LEN,
        pass_packs=_PASS_PACKS,
        num_anchors=36,
        num_steps=_NUM_STEPS,
        learning_rate=0.02,
        optimiser="adamw",
    )
    dataset = write_dataset(path / f"answers-{family}", taught.target, taught.answers, share=0.0)
    fixed = FixedParts(token_ids, torch.ones(HIDDEN_SIZE * len(TAPS)))
    net = start_net(settings, taught.target, fixed)
    source = open_source(taught.target, dataset, TAPS, None)
    objective = net.objective(settings)
    trainer = Trainer(net, objective, settings.fit, source, dataset.answers, SingleWorker())
    pieces = cut_answers(dataset.answers, range(len(dataset.answers)), _PACK_LEN)
    packs = arrange(pieces, _PACK_LEN, 0)
    for step in range(_NUM_STEPS):
        trainer.step(step, packs, empty_tally(settings))
    return net


def write_taught(
    net: TrainedNet,
    taught: TaughtTarget,
    path: Path,
    config: Mapping[str, Any] | None = None,  # Any: JSON
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the net as a checkpoint, perhaps a broken one.

    Args:
        config, tensors: Fields of config.json and tensors that differ.
    """
    fields = our_config(net.hparams, taught.target.identity, torch.float32)
    parameters = net.stored()
    write_draft_folder(path, fields, parameters, net.token_ids, torch.float32)
    (path / "config.json").write_text(json.dumps(fields | dict(config or {})))
    stored = load_file(path / "model.safetensors")
    contiguous = {name: tensor.contiguous() for name, tensor in (tensors or {}).items()}
    save_file(stored | contiguous, path / "model.safetensors")
    return path


def load_taught(path: Path, taught: TaughtTarget) -> AnyDraftNet:
    """The net of a checkpoint as it would be served."""
    model = taught.target.loaded.model
    return load_draft(open_checkpoint(path), model.hparams, ModelEnds(model), torch.float32)
