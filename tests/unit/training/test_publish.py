from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.config.model import ModelConfig
from slipstream.config.mtp import MtpConfig
from slipstream.config.speculation import DSparkConfig
from slipstream.engine.loading import LoadedModel, load_draft_net, load_mtp_heads
from slipstream.errors import ConfigError, WeightsError
from slipstream.models.drafts.calibration import CALIBRATION_FILE
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.hparams import DraftFamily, DSparkHparams, MtpHparams
from slipstream.models.drafts.load import describe_checkpoint, load_draft
from slipstream.models.drafts.mtp import MtpNet
from slipstream.models.drafts.origin import read_origin, require_origin
from slipstream.models.drafts.parts import empty_context
from slipstream.models.mtp.heads import MtpRows
from slipstream.models.mtp.load import describe_heads, load_heads, misfits
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.learned.mtp import chain_branch
from slipstream.training.calibrate import calibrate
from slipstream.training.evaluate import evaluate, measured
from slipstream.training.given import find_served, open_given
from slipstream.training.objective import RowResults
from slipstream.training.publish import GGUF_FILE, Layout, export_run, tell_story
from slipstream.training.run_folder import Progress, RunFolder, RunRecord
from slipstream.training.served import DraftShape, drafter_settings
from slipstream.training.session import (
    RestoredRun,
    TrainingTarget,
    open_source,
    restore_run,
    start_net,
    write_fixed,
)
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.tiny_llm import tiny_llm
from tests.support.training import (
    FAMILIES,
    counting_answers,
    fixed_parts,
    tiny_settings,
    tiny_target,
    trainer_of,
    write_dataset,
)

DRAFT_NETS = tuple(family for family in FAMILIES if family != "mtp")


def saved_run(family: DraftFamily, target: TrainingTarget, path: Path) -> RestoredRun:
    """A run of no steps, saved and read again."""
    settings = tiny_settings(family)
    dataset = write_dataset(path / "data", target, counting_answers(12), share=0.5)
    folder = RunFolder(path / "run")
    sha256 = dataset.manifest.sha256
    folder.begin(RunRecord(target=target.identity, dataset_sha256=sha256, settings=settings))
    write_fixed(folder, fixed_parts(settings))
    with pytest.raises(WeightsError, match="no checkpoint yet"):
        restore_run(path / "run", target)
    folder.save(Progress(), trainer_of(settings, target, dataset).state())
    return restore_run(path / "run", target)


@pytest.mark.parametrize("layout", ["slipstream", "speculators"])
@pytest.mark.parametrize("family", DRAFT_NETS)
def test_an_exported_drafter_loads_as_the_net_that_was_trained(
    family: DraftFamily, layout: Layout, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run(family, target, tmp_path)
    story = tell_story(run.record, run.progress, {"command": "test"})
    export_run(run, target, tmp_path / "draft", layout, "float32", story)

    checkpoint = open_checkpoint(tmp_path / "draft")
    described = describe_checkpoint(checkpoint)
    assert described is not None
    assert described.layout.family == family
    net = load_draft(checkpoint, target.loaded.model.hparams, run.net.ends, torch.float32)

    assert net.hparams == run.net.hparams
    assert net.draft_token_ids is not None
    assert torch.equal(net.draft_token_ids, run.net.token_ids)  # type: ignore[arg-type]  # reduced
    for name, parameter in run.net.stored().items():
        assert torch.equal(net.parameters[name], parameter), name
    told = json.loads((tmp_path / "draft/provenance.json").read_text())
    assert told["run"]["dataset_sha256"] == run.record.dataset_sha256
    assert told["provenance"] == {"command": "test"}


@pytest.mark.parametrize(("layout", "stored"), [("slipstream", "float32"), ("gguf", "f32")])
def test_an_exported_head_computes_what_was_trained(
    layout: Layout, stored: str, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("mtp", target, tmp_path)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter in sorted(run.net.trained().items()):
            parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    export_run(run, target, tmp_path / "draft", layout, stored, {})
    checkpoint = open_checkpoint(tmp_path / "draft")
    assert not [name for name in checkpoint.names() if "lm_head" in name or "target_norm" in name]

    heads = load_heads(checkpoint, target.loaded.model, torch.float32)
    ends = ModelEnds(target.loaded.model)  # a training rounds them
    parameters = run.net.copy_in(torch.float32).parameters
    hparams = run.net.hparams
    assert isinstance(hparams, MtpHparams)
    net = MtpNet(hparams, parameters, ends, run.net.token_ids)
    tokens = torch.tensor([11, 12, 13, 40, 5])
    states = torch.randn(5, 32, generator=generator)
    fused = net.fuse(states)
    rows = net.extend(
        tokens.view(1, 1, -1),
        fused.view(1, 1, 5, -1),
        torch.arange(5).view(1, 1, -1),
        empty_context(net.hparams.body, 1, 1),
        (),
        torch.ones(5, 5, dtype=torch.bool).tril(),
    )
    branch = chain_branch(0, 5, np.arange(8, 13))
    normed = target.loaded.model.final_norm(states)
    hidden = heads.run(0, MtpRows(tokens, normed, [branch]), heads.storage(16, torch.float32))

    assert torch.equal(heads.token_ids(), net.target_token_ids())
    torch.testing.assert_close(hidden, rows.normed[0, 0].detach(), atol=1e-5, rtol=1e-5)
    expected = ends.head(hidden)[:, net.target_token_ids()]
    torch.testing.assert_close(heads.logits(0, hidden), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("layout", "stored"), [("slipstream", "bfloat16"), ("gguf", "q8_0"), ("gguf", "q4_0")]
)
def test_an_exported_head_drafts_and_changes_no_token(
    layout: Layout, stored: str, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("mtp", target, tmp_path)
    export_run(run, target, tmp_path / "draft", layout, stored, {})
    own = drafter_settings(find_served(str(tmp_path / "draft")), DraftShape())
    prompts = [[11, 12, 13], [40, 41, 42, 43, 44, 45, 46], [200, 9]]
    path = Path(target.source)
    for params in (
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True),
    ):
        with tiny_llm(path) as plain, tiny_llm(path, settings=own) as drafting:
            expected = plain.generate(prompts, params)
            given = drafting.generate(prompts, params)
            assert [item.token_ids for item in given] == [item.token_ids for item in expected]
            stats = [item.choices[0].speculation for item in given]
            assert sum(item.num_draft_tokens for item in stats) > 60


def test_a_head_in_a_layout_that_has_none_is_refused(
    target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("mtp", target, tmp_path)
    with pytest.raises(ConfigError, match="layout speculators has no multi-token-prediction head"):
        export_run(run, target, tmp_path / "draft", "speculators", "float32", {})


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_a_head_in_blocks_is_held_in_them_with_a_trained_vocabulary(
    kind: str, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("mtp", target, tmp_path)
    run.net.parameters["lm_head.weight"].requires_grad_(True)
    export_run(run, target, tmp_path / "draft", "gguf", kind, {})

    checkpoint = open_checkpoint(tmp_path / "draft")
    described = describe_heads(checkpoint)
    assert described is not None
    assert described.layout.draft_vocab_size == run.record.settings.net.draft_vocab_size
    assert not misfits(described, target.loaded.model.hparams)
    heads = load_heads(checkpoint, target.loaded.model, torch.bfloat16, native_kernels())
    head = heads.heads[0]
    products = {*head.layer.mixer.linears(), head.ends.vocabulary}  # type: ignore[attr-defined]  # HeadEnds
    kernels = {name.rpartition(":")[2] for product in products for name in product.kernels}
    assert kernels == {kind.upper()}


def test_a_head_reads_the_last_layer_alone(target: TrainingTarget) -> None:
    settings = tiny_settings("mtp", {"tap_layer_ids": (0,)})
    with pytest.raises(ConfigError, match="mtp reads the output of the target's last layer alone"):
        start_net(settings, target, fixed_parts(settings))


@pytest.mark.parametrize(
    ("layout", "stored"), [("slipstream", "float32"), ("speculators", "float32"), ("gguf", "f32")]
)
def test_an_exported_drafter_keeps_its_calibration(
    layout: Layout, stored: str, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("dspark", target, tmp_path)
    hparams = run.net.hparams
    assert isinstance(hparams, DSparkHparams)
    temperatures = [0.5 + index for index in range(hparams.max_draft_len)]
    (run.path / CALIBRATION_FILE).write_text(json.dumps({"temperatures": temperatures}))
    export_run(run, target, tmp_path / "draft", layout, stored, {})

    folder = tmp_path / "draft"
    checkpoint = open_checkpoint(folder / GGUF_FILE if layout == "gguf" else folder)
    net = load_draft(checkpoint, target.loaded.model.hparams, run.net.ends, torch.float32)

    assert net.hparams.confidence_temperatures == tuple(temperatures)


@pytest.mark.parametrize("family", DRAFT_NETS)
def test_a_drafter_in_gguf_loads_as_the_net_that_was_trained(
    family: DraftFamily, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run(family, target, tmp_path)
    export_run(run, target, tmp_path / "draft", "gguf", "f32", {})

    checkpoint = open_checkpoint(tmp_path / "draft" / GGUF_FILE)
    net = load_draft(checkpoint, target.loaded.model.hparams, run.net.ends, torch.float32)

    assert net.hparams == run.net.hparams
    for name, parameter in run.net.stored().items():
        assert torch.equal(net.parameters[name], parameter), name


def test_a_quantised_drafter_is_small_and_near(target: TrainingTarget, tmp_path: Path) -> None:
    run = saved_run("dspark", target, tmp_path)
    sizes = {}
    for kind in ("f32", "q8_0", "q4_0"):
        export_run(run, target, tmp_path / kind, "gguf", kind, {})
        sizes[kind] = (tmp_path / kind / GGUF_FILE).stat().st_size
    assert sizes["q4_0"] < sizes["q8_0"] < sizes["f32"]
    checkpoint = open_checkpoint(tmp_path / "q8_0" / GGUF_FILE)
    net = load_draft(checkpoint, target.loaded.model.hparams, run.net.ends, torch.float32)
    expected = run.net.as_run()
    fusion, product = "fc.weight", "layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(net.parameters[fusion], expected[fusion], rtol=2**-8, atol=0.0)
    torch.testing.assert_close(net.parameters[product], expected[product], rtol=0.02, atol=1e-3)


def test_types_that_a_layout_lacks_are_refused(target: TrainingTarget, tmp_path: Path) -> None:
    run = saved_run("dspark", target, tmp_path)
    with pytest.raises(ConfigError, match="layout gguf stores q8_0, q4_1, q4_0, bf16, f32"):
        export_run(run, target, tmp_path / "draft", "gguf", "bfloat16", {})


def test_a_run_of_another_target_is_refused_by_name(target: TrainingTarget, tmp_path: Path) -> None:
    saved_run("dspark", target, tmp_path)
    with pytest.raises(WeightsError, match="were made for target target-1"):
        restore_run(tmp_path / "run", tiny_target(tmp_path, seed=2))


def test_evaluation_tells_categories_and_temperatures_apart(
    target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("dspark", target, tmp_path)
    answers = counting_answers(12)
    dataset = write_dataset(tmp_path / "more", target, answers)
    settings = run.record.settings
    source = open_source(target, dataset, settings.net.tap_layer_ids, None)
    objective = run.net.objective(settings)
    rows = evaluate(run.net, objective, settings.fit, source, answers, range(12), 3)
    assert [row.label for row in rows] == ["all, T = 0", "all, T > 0", "even", "odd"]
    assert rows[0].num_answers == 6
    for row in rows:
        assert 1.0 <= row.sampled_length <= 4.0
        assert list(row.greedy_shares) == sorted(row.greedy_shares, reverse=True)
    results = list(measured(run.net, objective, settings.fit, source, answers, range(12)))
    assert len(calibrate(results).temperatures) == 3


def test_nothing_held_out_calibrates_nothing() -> None:
    with pytest.raises(WeightsError, match="no answer of the data is held out"):
        calibrate([])


def test_calibration_finds_the_temperature_that_was_wrong() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(4000, 2, generator=generator)
    results = RowResults(
        acceptance=torch.sigmoid(truth),
        is_hit=torch.ones(4000, 2, dtype=torch.bool),
        is_valid=torch.ones(4000, 2, dtype=torch.bool),
        confidence=truth * 2.5,
    )
    calibration = calibrate([results])
    assert calibration.temperatures == pytest.approx((2.5, 2.5), rel=0.15)
    for before, after in zip(calibration.errors_before, calibration.errors_after, strict=True):
        assert after < 0.3 * before


def test_a_drafter_without_confidence_cannot_be_calibrated() -> None:
    nothing = torch.ones(1, 2)
    with pytest.raises(WeightsError, match="no confidence head"):
        calibrate([RowResults(nothing, nothing.bool(), nothing.bool())])


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        *(("dspark", layout) for layout in ("slipstream", "speculators", "gguf")),
        *(("mtp", layout) for layout in ("slipstream", "gguf")),
    ],
)
def test_a_drafter_is_refused_by_another_model_of_the_same_shape(
    family: DraftFamily, layout: Layout, target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run(family, target, tmp_path)
    stored = "f32" if layout == "gguf" else "float32"
    story = tell_story(run.record, run.progress, {})
    export_run(run, target, tmp_path / "draft", layout, stored, story)
    source = tmp_path / "draft" / GGUF_FILE if layout == "gguf" else tmp_path / "draft"
    other = tiny_target(tmp_path, seed=2)
    model = ModelConfig(dtype="float32")
    load: Callable[[LoadedModel], object]
    if family == "mtp":
        load = partial(load_mtp_heads, MtpConfig(source=str(source)), model)
    else:
        load = partial(load_draft_net, DSparkConfig(source=str(source)), model)

    load(target.loaded)
    with pytest.raises(WeightsError, match=r"was trained for target-1 .* target is target-2") as no:
        load(other.loaded)
    assert "slipstream train" in str(no.value.hint)
    if family != "mtp":
        with pytest.raises(WeightsError, match="was trained for target-1"):
            open_given(str(source), other)

    (tmp_path / "draft/provenance.json").unlink()  # nobody knows, and drafts change no answer
    load(other.loaded)


def test_a_target_in_another_format_keeps_its_drafters(
    target: TrainingTarget, tmp_path: Path
) -> None:
    run = saved_run("dspark", target, tmp_path)
    export_run(
        run,
        target,
        tmp_path / "draft",
        "slipstream",
        "float32",
        tell_story(run.record, run.progress, {}),
    )
    embeddings = target.loaded.model.embed(torch.arange(8)).abs()
    assert len(set(embeddings.argmax(-1).tolist())) > 1  # peaks tell models apart
    made_for = read_origin(tmp_path / "draft")
    assert made_for == target.identity
    other = {"weights_digest": "0123456789abcdef"}
    require_origin(tmp_path / "draft", target.identity.model_copy(update=other))
    peaks = tuple(peak + 1 for peak in target.identity.embedding_peaks)
    with pytest.raises(WeightsError, match="was trained for"):
        require_origin(
            tmp_path / "draft",
            target.identity.model_copy(update={**other, "embedding_peaks": peaks}),
        )


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "[" * 200_000, '{"run": 3}', '{"run": {"target": null}}']
)
def test_a_story_that_says_nothing_of_a_target_refuses_nobody(
    text: str, target: TrainingTarget, tmp_path: Path
) -> None:
    (tmp_path / "provenance.json").write_text(text)
    assert read_origin(tmp_path) is None
    require_origin(tmp_path / "weights.gguf", target.identity)
