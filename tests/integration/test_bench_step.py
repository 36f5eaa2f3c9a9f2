"""`slipstream bench step` on tiny random models: real steps, and parts that fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.cli.main import main
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint

SETTINGS = ["memory.kv_bytes=32MiB", "engine.num_threads=1"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return write_tiny_checkpoint(path, "llama", seed=1, dtype=torch.float32)


def run(model_path: Path, folder: Path, *options: str) -> tuple[Any, str]:  # Any: JSON values
    """What the command writes, and what it prints on 80 columns."""
    settings = [part for item in SETTINGS for part in ("--set", item)]
    files = ["--json", str(folder / "step.json"), "--plot", str(folder / "step.png")]
    with pytest.MonkeyPatch.context() as patch, (folder / "output").open("w") as output:
        patch.setattr("sys.stdout", output)
        patch.setenv("COLUMNS", "80")
        command = ["bench", "step", "--model", str(model_path), "--steps", "2", "--rounds", "2"]
        with pytest.raises(SystemExit) as end:
            main([*command, "--context-len", "40", *settings, *files, *options])
    assert end.value.code == 0
    assert (folder / "step.png").read_bytes().startswith(b"\x89PNG\r\n")
    return json.loads((folder / "step.json").read_text()), (folder / "output").read_text()


def test_a_native_step_is_taken_apart_without_a_rest(model_path: Path, tmp_path: Path) -> None:
    native_kernels()
    document, output = run(model_path, tmp_path, "--rows", "1,8,64,200")
    assert [(step["case"]["num_rows"], step["case"]["shape"]) for step in document["steps"]] == [
        (1, "draft"),
        (8, "draft"),
        (64, "draft"),
        (200, "prompt"),
    ]
    for step in document["steps"]:
        assert set(step["parts_s"]) == {
            "matrices",
            "attention",
            "other kernels",
            "head",
            "sampling",
            "host",
        }
        assert sum(step["parts_s"].values()) == pytest.approx(step["typical_s"], abs=1e-5)
        assert min(step["parts_s"].values()) >= 0.0
        assert len(step["walls_s"]) == 4
        assert step["step_share"] > 0.0
    assert document["steps"][3]["context_len"] == 32 + 200
    assert document["bandwidth"]["bytes_per_s"] > 0.0
    assert any(name.startswith("native-") for name in document["target"]["kernels"])
    assert document["provenance"]["command"].startswith("slipstream")
    assert "200 prompt" in output
    assert max(map(len, output.splitlines())) <= 80


def test_of_a_pass_in_torch_only_the_total_is_told(model_path: Path, tmp_path: Path) -> None:
    options = ("--rows", "1,4", "--shape", "requests", "--set", "model.dtype=float32")
    document, output = run(model_path, tmp_path, *options)
    for step in document["steps"]:
        assert set(step["parts_s"]) == {"pass", "sampling", "host"}
        assert step["matrices_share"] is None
    assert "only its total is known" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows takes whole numbers"),
        (["--shape", "round"], "--shape must be"),
        (["--json", "no/such/folder/x.json"], "cannot be written"),
        (["--context-len", "600"], "the model takes 512"),
        (
            ["--context-len", "100", "--rows", "300", "--shape", "requests"],
            "do not fit into the key/value cache",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for item in (*SETTINGS, "model.dtype=float32") for part in ("--set", item)]
    with pytest.raises(SystemExit) as end:
        main(["bench", "step", "--model", str(model_path), *settings, *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
