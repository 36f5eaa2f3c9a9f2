"""A net to go on from or to measure: a run and every layout of a checkpoint are one thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slipstream.config.model import ModelConfig
from slipstream.doctor.drafter_files import net_config
from slipstream.errors import ConfigError, SlipstreamError, WeightsError
from slipstream.models.drafts.calibration import CALIBRATION_FILE
from slipstream.models.drafts.hparams import (
    DFlashHparams,
    DraftFamily,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
)
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import describe_checkpoint
from slipstream.models.hparams import LayerParams, RotaryParams
from slipstream.training.begin import Beginning, begin_with
from slipstream.training.dataset import Dataset
from slipstream.training.draft_files import our_config, write_draft_folder
from slipstream.training.families.table import FAMILIES as TRAINED
from slipstream.training.given import find_served, open_given
from slipstream.training.nets import TrainedNet
from slipstream.training.packing import arrange, cut_answers
from slipstream.training.publish import GGUF_FILE, Layout, export_run, tell_story
from slipstream.training.run_folder import Progress, RunFolder, RunRecord
from slipstream.training.session import (
    RestoredRun,
    TrainingTarget,
    open_source,
    restore_run,
    write_fixed,
    write_shape,
)
from slipstream.training.settings import RunSettings
from slipstream.training.trainer import Packs
from slipstream.weights.hub_source import HubSource
from slipstream.weights.layout import DRAFT_FOLDER
from slipstream.weights.open import open_checkpoint
from slipstream.weights.sources import source_of
from tests.support.file_server import file_server
from tests.support.training import (
    FAMILIES,
    PACK_LEN,
    counting_answers,
    empty_tally,
    fixed_parts,
    tiny_settings,
    tiny_target,
    trainer_of,
    write_dataset,
)

NUM_STEPS = 3
LAYOUTS: tuple[tuple[DraftFamily, Layout, str], ...] = (
    *((family, "slipstream", "float32") for family in FAMILIES),
    *((family, "speculators", "float32") for family in FAMILIES if family != "mtp"),
    *((family, "gguf", "f32") for family in FAMILIES),
)


@pytest.fixture
def dataset(target: TrainingTarget, tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", target, counting_answers(12), share=0.4)


def save(
    path: Path,
    settings: RunSettings,
    target: TrainingTarget,
    dataset: Dataset,
    begun: Beginning | None = None,
) -> RestoredRun:
    """A run of a few steps, or of none where it has begun with a net."""
    folder, sha256 = RunFolder(path), dataset.manifest.sha256
    folder.begin(RunRecord(target=target.identity, dataset_sha256=sha256, settings=settings))
    write_fixed(folder, begun.fixed if begun else fixed_parts(settings))
    trainer = trainer_of(settings, target, dataset, net=begun.net if begun else None)
    write_shape(folder, trainer.net.hparams)
    packs = packs_of(dataset)
    for step in range(0 if begun else NUM_STEPS):
        trainer.step(step, packs, empty_tally(settings))
    folder.save(Progress(), trainer.state())
    return restore_run(path, target)


def packs_of(dataset: Dataset) -> Packs:
    pieces = cut_answers(dataset.answers, range(len(dataset.answers)), PACK_LEN)
    return arrange(pieces, PACK_LEN, 0)


def loss_of(
    net: TrainedNet, settings: RunSettings, target: TrainingTarget, dataset: Dataset
) -> tuple[float, float]:
    """Loss and mean acceptance length along all answers."""
    tally = empty_tally(settings)
    loss = trainer_of(settings, target, dataset, net=net).measure(packs_of(dataset), tally)
    return loss, tally.sampled_length()


def begin(
    path: Path, target: TrainingTarget, dataset: Dataset, change: dict[str, Any] | None = None
) -> tuple[RunSettings, Beginning]:
    """Start a run with a net.

    Args:
        change: Settings of the net that are not its own.
    """
    given = open_given(str(path), target)
    net = given.settings.net.model_copy(update=change or {})
    fit = tiny_settings(net.family).fit
    settings = given.settings.model_copy(update={"net": net, "fit": fit})
    source = open_source(target, dataset, net.tap_layer_ids, None)
    return settings, begin_with(given, settings, target, dataset, source)


@pytest.mark.parametrize(("family", "layout", "stored"), LAYOUTS)
def test_an_exported_net_goes_on_as_the_run_would(
    family: DraftFamily,
    layout: Layout,
    stored: str,
    target: TrainingTarget,
    dataset: Dataset,
    tmp_path: Path,
) -> None:
    settings = tiny_settings(family)
    run = save(tmp_path / "run", settings, target, dataset)
    export_run(run, target, tmp_path / "given", layout, stored, {})
    expected = loss_of(run.net, settings, target, dataset)

    given = open_given(str(tmp_path / "given"), target)
    _, begun = begin(tmp_path / "given", target, dataset)

    assert given.net.hparams == run.net.hparams == begun.net.hparams
    assert loss_of(given.net, settings, target, dataset) == expected
    assert loss_of(begun.net, settings, target, dataset) == expected
    for name, weights in run.net.as_run().items():
        assert torch.equal(begun.net.as_run()[name], weights), name
    assert begun.net.trained().keys() == run.net.trained().keys() | (
        {"lm_head.weight"} if family != "mtp" else set()  # a reduced head is the file's own
    )
    shape = TRAINED[family].settings_of(run.net.hparams)
    wanted, found = settings.net.model_dump(), given.settings.net.model_dump()
    assert {name: found[name] for name in shape} == {name: wanted[name] for name in shape}


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_read_back_to_what_they_stand_for(
    family: DraftFamily, kind: str, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings(family)
    run = save(tmp_path / "run", settings, target, dataset)
    export_run(run, target, tmp_path / "given", "gguf", kind, {})
    _, begun = begin(tmp_path / "given" / GGUF_FILE, target, dataset)

    name, wide = "layers.0.mlp.up_proj.weight", {"q8_0": 0.02, "q4_0": 0.3}[kind]
    old, new = (net.as_run()[name].detach().clone() for net in (run.net, begun.net))
    assert 0.0 < float((new - old).norm() / old.norm()) < wide
    losses = [loss_of(net, settings, target, dataset)[0] for net in (run.net, begun.net)]
    assert losses[1] == pytest.approx(losses[0], rel=wide)
    trainer = trainer_of(settings, target, dataset, net=begun.net)
    trainer.step(0, packs_of(dataset), empty_tally(settings))
    assert not torch.equal(begun.net.as_run()[name], new)


@pytest.mark.parametrize("size", ["num_layers", "intermediate_size"])
def test_an_exported_net_grows(
    size: str, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark")
    run = save(tmp_path / "run", settings, target, dataset)
    export_run(run, target, tmp_path / "given", "slipstream", "float32", {})
    old_size = getattr(settings.net, size)
    larger, begun = begin(tmp_path / "given", target, dataset, {size: 2 * old_size})
    expected = loss_of(run.net, settings, target, dataset)
    assert loss_of(begun.net, larger, target, dataset) == pytest.approx(expected, rel=1e-5)
    grown = save(tmp_path / "grown", larger, target, dataset, begun)
    export_run(grown, target, tmp_path / "large", "slipstream", "float32", {})
    with pytest.raises(ConfigError, match=size):
        begin(tmp_path / "large", target, dataset, {size: old_size})


def test_an_exported_net_comes_to_know_more_tokens(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark")
    run = save(tmp_path / "run", settings, target, dataset)
    export_run(run, target, tmp_path / "given", "speculators", "float32", {})
    size = settings.net.draft_vocab_size + 20
    _, begun = begin(tmp_path / "given", target, dataset, {"draft_vocab_size": size})
    places = torch.isin(begun.fixed.token_ids, run.fixed.token_ids)
    assert (len(places), int(places.sum())) == (size, size - 20)
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        assert torch.equal(begun.net.parameters[name][places], run.net.parameters[name])


def published(path: Path, hparams: DraftHparams, target: TrainingTarget) -> dict[str, Tensor]:
    """Write a random net that no training of ours would begin with."""
    generator = torch.Generator().manual_seed(1)
    parameters = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_parameters(hparams, generator).items()
    }
    token_ids = torch.arange(hparams.draft_vocab_size).flip(0) if hparams.is_reduced else None
    config = our_config(hparams, target.identity, torch.float32)
    write_draft_folder(path, config, parameters, token_ids, torch.float32)
    return parameters


def eagle3_of_others(hparams: DraftHparams) -> DraftHparams:
    """Narrower than the target, with ends and options of its own."""
    assert isinstance(hparams, Eagle3Hparams)
    rotary = RotaryParams(5000.0, "llama3", 8.0, 1.0, 4.0, 256)
    body = replace(
        hparams.body,
        hidden_size=16,
        num_heads=2,
        kv_heads=1,
        norm_eps=1e-6,
        activation="gelu_tanh",
        qkv_bias=True,
        output_bias=True,
        layers=(LayerParams(None, rotary),),
    )
    return replace(
        hparams,
        body=body,
        has_own_embeddings=True,
        has_normed_residual=True,
        has_input_norm=True,
        recycles_normed=True,
    )


def dflash_of_others(hparams: DraftHparams) -> DraftHparams:
    """Without a head of its own, some layers causal in a window."""
    assert isinstance(hparams, DFlashHparams)
    full = hparams.body.layers[0]
    layers = (full, replace(full, window=24))
    return replace(
        hparams,
        body=replace(hparams.body, layers=layers),
        causal_layers=(False, True),
        embedding_scale=2.0,
        has_own_head=False,
        draft_vocab_size=hparams.body.vocab_size,
    )


@pytest.mark.parametrize(
    ("family", "change"), [("eagle3", eagle3_of_others), ("dflash", dflash_of_others)]
)
def test_a_published_net_keeps_its_own_shape(
    family: DraftFamily,
    change: Callable[[DraftHparams], DraftHparams],
    target: TrainingTarget,
    dataset: Dataset,
    tmp_path: Path,
) -> None:
    usual = TRAINED[family].hparams(tiny_settings(family).net, target.loaded.model.hparams)
    hparams = change(usual)
    parameters = published(tmp_path / "given", hparams, target)
    given = open_given(str(tmp_path / "given"), target)
    settings, begun = begin(tmp_path / "given", target, dataset)
    run = save(tmp_path / "run", settings, target, dataset, begun)
    expected = loss_of(given.net, settings, target, dataset)

    assert run.net.stored_hparams() == hparams
    assert run.net.stored().keys() == parameters.keys()
    assert loss_of(begun.net, settings, target, dataset) == pytest.approx(expected, rel=1e-6)
    assert loss_of(run.net, settings, target, dataset) == loss_of(
        begun.net, settings, target, dataset
    )
    layouts: tuple[Layout, ...] = ("slipstream", "speculators")
    for layout in layouts:
        export_run(run, target, tmp_path / layout, layout, "float32", {})
        again = open_given(str(tmp_path / layout), target).net
        assert again.stored_hparams() == hparams
        for name, parameter in run.net.stored().items():
            assert torch.equal(again.stored()[name], parameter), name
    with pytest.raises(ConfigError, match=r"layout gguf cannot express|GGUF has no"):
        export_run(run, target, tmp_path / "file", "gguf", "f32", {})
    assert not (tmp_path / "file" / GGUF_FILE).exists()


def test_temperatures_stay_with_the_net_that_they_were_fitted_to(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark")
    run = save(tmp_path / "run", settings, target, dataset)
    (run.path / CALIBRATION_FILE).write_text(json.dumps({"temperatures": [0.5, 1.0, 2.0]}))
    export_run(run, target, tmp_path / "given", "slipstream", "float32", {})
    given = open_given(str(tmp_path / "given"), target).net.hparams
    begun = begin(tmp_path / "given", target, dataset)[1].net.hparams
    assert isinstance(given, DSparkHparams)
    assert isinstance(begun, DSparkHparams)
    assert given.confidence_temperatures == (0.5, 1.0, 2.0)
    assert begun.confidence_temperatures == ()


def test_what_cannot_be_gone_on_from_is_refused_by_name(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    run = save(tmp_path / "run", tiny_settings("dspark"), target, dataset)
    export_run(run, target, tmp_path / "given", "slipstream", "float32", {})
    wide = tiny_settings("dflash").net
    hparams = TRAINED["dflash"].hparams(wide, target.loaded.model.hparams)
    published(tmp_path / "capped", hparams, target)
    config = json.loads((tmp_path / "capped/config.json").read_text())
    config["dflash_config"]["final_logit_softcapping"] = 30.0
    (tmp_path / "capped/config.json").write_text(json.dumps(config))
    other = tiny_target(tmp_path / "wider", hidden_size=64)
    (tmp_path / "empty").mkdir()

    refused: list[tuple[str, TrainingTarget, type[SlipstreamError], str]] = [
        (str(tmp_path / "given"), other, WeightsError, "does not fit the target: its taps have 32"),
        (target.source, target, WeightsError, "holds no drafter"),
        (str(tmp_path / "capped"), target, WeightsError, "capped at 30"),
        (str(tmp_path / "empty"), target, WeightsError, "is no training run and holds no drafter"),
        ("dsprk", target, ConfigError, "dsprk does not exist, and no drafter of that name"),
        ("dspark", target, ConfigError, "no drafter of kind dspark is shipped for target-1"),
    ]
    for name, of, kind, message in refused:
        with pytest.raises(kind, match=message) as error:
            open_given(name, of)
        assert error.value.hint
    changes: list[dict[str, Any]] = [
        {"tap_layer_ids": (1,)},
        {"mask_token_id": 5},
        {"markov_rank": 4},
        {"trains_head": False},
    ]
    for change in changes:
        with pytest.raises(ConfigError, match=next(iter(change))):
            begin(tmp_path / "given", target, dataset, change)


def test_an_engine_is_told_where_a_net_is(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    run = save(tmp_path / "run", tiny_settings("dspark"), target, dataset)
    export_run(run, target, tmp_path / "given", "gguf", "q8_0", {})
    file = tmp_path / "given" / GGUF_FILE
    export_run(run, target, run.path / DRAFT_FOLDER, "slipstream", "float32", {})
    told = [find_served(str(name)) for name in (run.path, tmp_path / "given", file, "dspark")]
    assert [item.kind for item in told] == ["dspark"] * 4
    assert [item.draft_len for item in told] == [3, 3, 3, 4]
    places = (run.path / "draft", tmp_path / "given", file, "shipped")
    assert [item.source for item in told] == list(map(str, places))


@pytest.mark.parametrize("layout", ["slipstream", "gguf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_doctor_tells_every_family_by_its_files(
    family: DraftFamily, layout: Layout, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    run = save(tmp_path / "run", tiny_settings(family), target, dataset)
    stored = "float32" if layout == "slipstream" else "f32"
    export_run(run, target, tmp_path / "given", layout, stored, {})
    item = net_config(str(tmp_path / "given"), ModelConfig())
    assert item.kind == ("dflash" if family == "dflash2" else family)


def test_a_net_is_fetched_where_models_come_from(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(tmp_path / "run", tiny_settings("dspark"), target, dataset)
    story = tell_story(run.record, run.progress, {})
    export_run(run, target, tmp_path / "given", "slipstream", "float32", story)
    model = ModelConfig(cache_dir=tmp_path / "cache")
    with file_server() as server:
        server.repos["org/drafter"] = {
            path.name: path.read_bytes() for path in (tmp_path / "given").iterdir()
        }
        at_server = partial(HubSource, endpoint=server.url)
        monkeypatch.setattr("slipstream.weights.hub_source.HubSource", at_server)
        told = find_served("org/drafter", model)
        given = open_given("org/drafter", target, model)
        with pytest.raises(WeightsError, match="was trained for target-1"):
            open_given("org/drafter", tiny_target(tmp_path, seed=2), model)
        with pytest.raises(WeightsError, match="run/missing is no path here; ") as missing:
            open_given("run/missing", target, model)
    assert missing.value.hint
    assert (told.kind, told.draft_len) == ("dspark", 3)
    assert describe_checkpoint(open_checkpoint(Path(told.source))) is not None
    assert given.name == "org/drafter"
    local = open_given(str(tmp_path / "given"), target)
    assert given.sha256 == local.sha256


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_run_is_no_checkpoint_and_says_where_its_drafter_is(
    has_ended: bool, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    run = save(tmp_path / "run", tiny_settings("dspark"), target, dataset)
    if has_ended:
        export_run(run, target, run.path / DRAFT_FOLDER, "slipstream", "float32", {})

    asks: list[Callable[[], object]] = [
        partial(open_checkpoint, run.path),
        partial(source_of, ModelConfig(source=str(run.path))),
    ]
    for ask in asks:
        with pytest.raises(WeightsError) as refused:
            ask()

        told = f"{refused.value.message}; {refused.value.hint}"
        assert ("no drafter yet" in told) != has_ended
        assert (f"give {run.path / DRAFT_FOLDER}" if has_ended else "train export") in told


def test_a_run_that_has_not_ended_has_no_drafter_to_serve(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    run = save(tmp_path / "run", tiny_settings("dspark"), target, dataset)
    asks: list[Callable[[], object]] = [
        partial(find_served, str(run.path)),
        partial(find_served, str(run.path / DRAFT_FOLDER)),
        partial(source_of, ModelConfig(source=str(run.path / DRAFT_FOLDER))),
    ]
    for ask in asks:
        with pytest.raises(WeightsError, match="has no drafter yet") as refused:
            ask()
        assert f"train export {run.path}" in str(refused.value.hint)
