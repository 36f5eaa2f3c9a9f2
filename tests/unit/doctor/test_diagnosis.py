"""Drafters whose convention was broken on purpose: acceptance collapses, the doctor says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slipstream.doctor.conventions import conventions_of, layers_read
from slipstream.doctor.diagnosis import Diagnosis, diagnose, judge
from slipstream.doctor.forced import ForcedText
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of
from slipstream.training.nets import TrainedNet
from tests.support.trained_drafts import (
    NUM_DRAFTS,
    TAPS,
    TaughtTarget,
    load_taught,
    write_taught,
)


@dataclass(frozen=True, slots=True)
class Broken:
    """What is changed in a checkpoint, and the convention that puts it right."""

    convention: str
    config: Callable[[], dict[str, Any]] = dict  # Any: JSON
    tensors: Callable[[TrainedNet], dict[str, Tensor]] = lambda _: {}


def norms_without_their_one(net: TrainedNet) -> dict[str, Tensor]:
    return {name: tensor.detach() - 1.0 for name, tensor in net.stored().items() if "norm" in name}


def interleaved(net: TrainedNet) -> dict[str, Tensor]:
    found = {}
    for name, tensor in net.stored().items():
        if any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
            halves = tensor.detach().view(-1, 2, net.hparams.body.head_dim // 2, *tensor.shape[1:])
            found[name] = halves.transpose(1, 2).reshape(tensor.shape)
    return found


def strange_embeddings(net: TrainedNet) -> dict[str, Tensor]:
    shape = net.ends.embeddings.shape
    return {"embed_tokens.weight": torch.randn(shape, generator=torch.Generator().manual_seed(7))}


def exchanged_ends(net: TrainedNet) -> dict[str, Tensor]:
    ends = net.ends
    return {
        "embed_tokens.weight": ends.vocabulary.float(),
        "lm_head.weight": ends.embeddings.float(),
    }


def exchanged_gates(net: TrainedNet) -> dict[str, Tensor]:
    stored, parts = net.stored(), ("gate_proj", "up_proj")
    names = [name for name in stored if f"mlp.{parts[0]}" in name]
    return {name: stored[name.replace(*parts)].detach() for name in names} | {
        name.replace(*parts): stored[name].detach() for name in names
    }


def state_first(net: TrainedNet) -> dict[str, Tensor]:
    stored = net.stored()
    names = [f"layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    return {name: stored[name].detach().roll(stored[name].shape[1] // 2, 1) for name in names}


def taps(*layers: int) -> Callable[[], dict[str, Any]]:  # Any: JSON
    return lambda: {"target_layer_ids": list(layers)}


def inputs(*layers: int) -> Callable[[], dict[str, Any]]:  # Any: JSON
    return lambda: {"eagle_aux_hidden_state_layer_ids": list(layers)}


OF_DSPARK = [
    Broken("taps one layer earlier", taps(*(layer + 1 for layer in TAPS))),
    Broken("taps one layer later", taps(*(layer - 1 for layer in TAPS))),
    Broken("taps in the opposite order", taps(*TAPS[::-1])),
    Broken("rotary base 10000", lambda: {"rope_theta": 5.0}),
    Broken("rotary pairs of neighbours", tensors=interleaved),
    Broken("norm weights as 1 + w", tensors=norms_without_their_one),
    Broken("the target's embeddings", tensors=strange_embeddings),
    Broken("gate and up exchanged", tensors=exchanged_gates),
    Broken("a row drafts the place behind it", lambda: {"sample_from_anchor": False}),
    Broken("mask token 0", lambda: {"mask_token_id": 9}),
]
OF_EAGLE3 = [
    Broken("taps one layer earlier", inputs(*(layer + 2 for layer in TAPS))),
    Broken("taps in the opposite order", inputs(*(layer + 1 for layer in TAPS[::-1]))),
    Broken("rotary base 10000", lambda: {"rope_theta": 5.0}),
    Broken("not the residual behind hidden_norm", lambda: {"norm_before_residual": True}),
    Broken("embeddings and head exchanged", tensors=exchanged_ends),
    Broken("gate and up exchanged", tensors=exchanged_gates),
    Broken("the state in front of the embedding", tensors=state_first),
]


def examined(net: AnyDraftNet, taught: TaughtTarget, *texts: ForcedText) -> Diagnosis:
    conventions = conventions_of(net, taught.target.loaded.model.hparams, (0, 1, 2))
    return diagnose(net, texts or taught.texts, NUM_DRAFTS, conventions)


@pytest.mark.parametrize("family", ["dspark", "eagle3"])
def test_a_drafter_that_is_read_as_it_was_trained_is_well(
    family: DraftFamily, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    net = load_taught(write_taught(nets[family], taught, tmp_path), taught)

    diagnosis = examined(net, taught)

    assert diagnosis.length > 2.0
    assert list(diagnosis.shares) == sorted(diagnosis.shares, reverse=True)
    assert diagnosis.known_share == 1.0
    assert diagnosis.suspect is None
    assert judge("net", diagnosis).status == "ok"


@pytest.mark.parametrize("broken", OF_DSPARK, ids=lambda broken: broken.convention)
def test_a_broken_convention_of_a_block_drafter_is_named(
    broken: Broken, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    require_named("dspark", broken, nets["dspark"], taught, tmp_path)


@pytest.mark.parametrize("broken", OF_EAGLE3, ids=lambda broken: broken.convention)
def test_a_broken_convention_of_eagle_is_named(
    broken: Broken, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    require_named("eagle3", broken, nets["eagle3"], taught, tmp_path)


def require_named(
    family: DraftFamily, broken: Broken, trained: TrainedNet, taught: TaughtTarget, path: Path
) -> None:
    path = write_taught(trained, taught, path, broken.config(), broken.tensors(trained))
    net = load_taught(path, taught)

    diagnosis = examined(net, taught)

    assert diagnosis.suspect is not None, diagnosis.conventions[0]
    assert diagnosis.suspect.name == broken.convention
    assert diagnosis.suspect.length > max(2.0, diagnosis.length + 0.5)
    finding = judge(family, diagnosis)
    assert finding.status == "wrong"
    assert broken.convention in finding.message
    assert finding.hint == diagnosis.suspect.remedy


@pytest.mark.parametrize(("moved", "convention"), [(1, "later"), (-1, "earlier")])
@pytest.mark.parametrize("family", ["dspark", "eagle3"])
def test_states_that_are_one_place_off_are_named(
    family: DraftFamily,
    moved: int,
    convention: str,
    nets: dict[DraftFamily, TrainedNet],
    taught: TaughtTarget,
    tmp_path: Path,
) -> None:
    net = load_taught(write_taught(nets[family], taught, tmp_path), taught)
    texts = [
        replace(text, taps={layer: tap.roll(moved, 0) for layer, tap in text.taps.items()})
        for text in taught.texts
    ]
    suspect = examined(net, taught, *texts).suspect
    assert suspect is not None
    assert suspect.name == f"states one place {convention}"


def test_a_draft_vocabulary_of_target_ids_that_is_read_as_offsets_is_named(
    nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    net = load_taught(write_taught(nets["dspark"], taught, tmp_path), taught)
    assert net.draft_token_ids is not None
    ids = net.draft_token_ids + torch.arange(len(net.draft_token_ids))
    suspect = examined(type(net)(net.hparams, net.parameters, net.ends, ids), taught).suspect
    assert suspect is not None
    assert suspect.name == "d2t as target ids"


def test_an_untrained_drafter_is_wrong_whatever_is_tried(
    nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget
) -> None:
    trained = nets["dspark"]
    generator = torch.Generator().manual_seed(3)
    parameters = initial_parameters(trained.hparams, generator)
    net = net_class_of(trained.hparams)(
        trained.hparams, parameters, trained.ends, trained.token_ids
    )
    finding = judge("net", examined(net, taught))
    assert finding.status == "wrong"
    assert "No convention that is known does better" in finding.message
    assert finding.hint is not None
    assert "made for another target" in finding.hint


def test_too_few_drafts_are_no_verdict(
    nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    net = load_taught(write_taught(nets["eagle3"], taught, tmp_path), taught)
    text = taught.texts[0]
    short = replace(text, tokens=text.tokens[: text.answer_at + NUM_DRAFTS + 2])
    assert judge("net", examined(net, taught, short)).status == "warning"
    shorter = replace(text, tokens=text.tokens[: text.answer_at + 1])
    assert judge("net", examined(net, taught, shorter)).status == "warning"


def test_only_layers_that_exist_are_read(
    nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    config = {"target_layer_ids": [-1, 3]}
    net = load_taught(write_taught(nets["dspark"], taught, tmp_path, config), taught)
    conventions = conventions_of(net, taught.target.loaded.model.hparams)
    assert layers_read(conventions, net) == (-1, 3)
