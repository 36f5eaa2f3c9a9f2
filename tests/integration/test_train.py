"""`slipstream train` from prompts to a drafter that loads, on a tiny model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream.cli.main import main
from tests.support.tiny_llm import write_tiny_model

Arguments = list[str | Path]


def run(*arguments: str | Path) -> int:
    """The command's exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def flags(model: Path) -> list[str]:
    settings = ("model.dtype=float32", "memory.kv_bytes=4MiB", "engine.num_threads=1")
    return ["--model", str(model)] + [part for text in settings for part in ("--set", text)]


def make_data(tmp_path: Path, model: Path) -> Path:
    lines = [json.dumps({"id": f"p{i}", "prompt": f"tell me about {i}"}) for i in range(12)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "protected.jsonl").write_text('{"prompt": "tell me about 3"}')
    command: Arguments = [
        "train",
        "data",
        "--prompts",
        tmp_path / "prompts.jsonl",
        "--out",
        tmp_path / "data",
    ]
    command += ["--protect", tmp_path / "protected.jsonl", "--max-tokens", "12"]
    assert run(*command, "--validation-share", "0.4", *flags(model)) == 0
    return tmp_path / "data"


def test_prompts_become_a_drafter(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, cache, out = make_data(tmp_path, model), tmp_path / "cache", tmp_path / "run"
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["dropped"] == {"repeats an evaluation prompt": 1}
    assert sum(side["answers"] for side in manifest["splits"].values()) == 11

    of_data: Arguments = ["--data", data, *flags(model)]
    assert run("train", "cache", *of_data, "--taps", "0,1", "--out", cache) == 0
    fit: Arguments = ["train", "fit", *of_data, "--cache", cache, "--out", out, "--draft-len", "3"]
    fit += ["--layers", "1", "--draft-vocab", "128", "--markov-rank", "8", "--pack-len", "64"]
    fit += ["--steps", "4", "--step-packs", "2", "--anchors", "8", "--checkpoint-every", "2"]
    assert run(*fit) == 0
    assert "answer tokens/s, 0:00:00 left" in capsys.readouterr().out
    assert run("train", "eval", out, *of_data, "--cache", cache, "--json", tmp_path / "e.json") == 0
    served: Arguments = ["--prompts", tmp_path / "prompts.jsonl", "--json", tmp_path / "s.json"]
    assert run("train", "eval", out, *served, "--per-category", "2", *flags(model)) == 0
    assert run("train", "calibrate", out, *of_data, "--cache", cache) == 0
    export: Arguments = [
        "train",
        "export",
        out,
        "--layout",
        "speculators",
        "--out",
        tmp_path / "exported",
    ]
    assert run(*export, *flags(model)) == 0
    assert run("models", "show", out / "draft", "--target", model) == 0

    assert "dspark" in capsys.readouterr().out.lower()
    assert (out / "training.png").exists()
    provenance = json.loads((out / "draft/provenance.json").read_text())
    assert provenance["run"]["dataset_sha256"] == manifest["sha256"]
    assert provenance["provenance"]["command"].startswith("slipstream")
    for folder in (out, out / "draft"):  # the second is what is served
        assert len(json.loads((folder / "calibration.json").read_text())["temperatures"]) == 3
    assert [row["label"] for row in json.loads((tmp_path / "s.json").read_text())] == [
        "all",
        "prompts",
    ]
    assert {row["label"] for row in json.loads((tmp_path / "e.json").read_text())} >= {"prompts"}


def test_processes_of_one_training_share_the_threads(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = len(os.sched_getaffinity(0)) + 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(many))
    command: Arguments = ["train", "fit", "--data", "x", "--out", "y", *flags(model)]
    assert run(*command, "--set", "engine.num_threads=2") != 0
    assert f"{many} processes share them" in " ".join(capsys.readouterr().err.split())


def test_what_leaves_nothing_to_learn_from_is_refused(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "p.jsonl", tmp_path / "data"
    file.write_text('{"prompt": "..."}')
    data: Arguments = ["train", "data", "--out", out, *flags(model)]
    assert run(*data, "--prompts", file) == 2
    told = capsys.readouterr()
    assert "left out: 1 (without words)" in told.out
    assert "holds no answers" in told.err
    assert run(*data, "--import", out / "answers.jsonl", "--max-prompts", "1") == 2
    assert "--max-prompts 1 is of the files of --prompts" in capsys.readouterr().err


def test_a_run_starts_with_the_weights_of_another(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path, model)
    fit: Arguments = ["train", "fit", "--data", data, *flags(model), "--family", "eagle3"]
    fit += ["--draft-vocab", "128", "--pack-len", "64", "--step-packs", "2", "--anchors", "8"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(*fit, "--draft-len", "2", "--steps", "3", "--out", first) == 0
    more: Arguments = [*fit, "--steps", "1", "--learning-rate", "1e-7", "--start-from", first]
    assert run(*more, "--draft-len", "2", "--out", second) == 0
    assert json.loads((second / "run.json").read_text())["start_sha256"]
    weights = [load_file(path / "draft/model.safetensors") for path in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0.02, atol=1e-4)
    capsys.readouterr()
    assert run(*more, "--taps", "1", "--out", tmp_path / "third") == 2
    told = capsys.readouterr().err
    assert "differs from the one to train in tap_layer_ids ((0,) there, (1,) now)" in told


@pytest.mark.parametrize(
    ("family", "layout"), [("dspark", "gguf"), ("eagle3", "speculators"), ("mtp", "gguf")]
)
def test_an_exported_drafter_is_trained_further_and_measured(
    family: str, layout: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path, model)
    fit: Arguments = ["train", "fit", "--data", data, *flags(model), "--pack-len", "64"]
    fit += ["--step-packs", "2", "--anchors", "8"]
    first, second, given = tmp_path / "first", tmp_path / "second", tmp_path / "given"
    sizes: Arguments = ["--family", family, "--draft-vocab", "128", "--draft-len", "3"]
    assert run(*fit, *sizes, "--steps", "3", "--out", first) == 0
    export: Arguments = ["train", "export", first, "--layout", layout, "--out", given]
    assert run(*export, *flags(model)) == 0

    more: Arguments = [*fit, "--steps", "2", "--start-from", given]
    assert run(*more, "--out", second) == 0
    assert run(*more, "--out", second) == 0  # goes on, to no effect
    along: Arguments = ["train", "eval", given, "--data", data, *flags(model)]
    assert run(*along, "--json", tmp_path / "e.json") == 0
    served: Arguments = ["--prompts", tmp_path / "prompts.jsonl", "--per-category", "2"]
    assert run("train", "eval", given, *served, *flags(model)) == 0

    record = json.loads((second / "run.json").read_text())
    old = json.loads((first / "run.json").read_text())["settings"]["net"]
    assert record["start_from"] == str(given)
    assert record["start_sha256"]
    kept = ("family", "num_layers", "tap_layer_ids", "draft_vocab_size", "intermediate_size")
    assert [record["settings"]["net"][name] for name in kept] == [old[name] for name in kept]
    capsys.readouterr()
    assert run(*more, "--family", "dflash", "--out", tmp_path / "third") == 2
    told = capsys.readouterr().err
    assert f"is of family {family}, and --family says dflash" in told
    assert "hint: " in told


def test_errors_end_with_a_hint(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path, model)
    other = write_tiny_model(tmp_path / "other", seed=2)
    failing: list[tuple[Arguments, int, str]] = [
        (["train", "data", "--out", tmp_path / "x"], 2, "nothing to learn from"),
        (
            [
                "train",
                "fit",
                "--data",
                data,
                "--out",
                tmp_path / "x",
                *flags(model),
                "--objective",
                "y",
            ],
            2,
            "--family must be one of",
        ),
        (
            ["train", "fit", "--data", tmp_path, "--out", tmp_path / "x", *flags(model)],
            1,
            "no folder",
        ),
        (
            ["train", "fit", "--data", data, "--out", tmp_path / "x", *flags(other)],
            1,
            "target model",
        ),
        (["train", "eval", tmp_path], 2, "give answers"),
        (["train", "eval", tmp_path, "--data", data, *flags(model)], 1, "no training run"),
        (["train", "eval", tmp_path, "--prompts", tmp_path / "prompts.jsonl"], 1, "no training"),
        (
            ["train", "eval", "dsprk", "--data", data, *flags(model)],
            2,
            "shipped are eagle3, dspark",
        ),
        (
            ["train", "fit", "--data", data, "--out", "x", "--start-from", "dspark", *flags(model)],
            2,
            "no drafter of kind dspark is shipped for",
        ),
    ]
    for command, status, message in failing:
        capsys.readouterr()
        assert run(*command) == status
        told = capsys.readouterr().err
        assert message in told
        assert "hint: " in told


def test_unknown_parts_of_the_loss_are_refused(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path, model)
    fit: Arguments = ["train", "fit", "--data", data, "--out", tmp_path / "x", *flags(model)]
    assert run(*fit, "--loss", "perplexity=1") == 2
    assert "perplexity cannot be 1" in capsys.readouterr().err
    assert run(*fit, "--loss", "label") == 2
    assert "--loss takes PART=SCALE" in capsys.readouterr().err
