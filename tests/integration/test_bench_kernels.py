"""`slipstream bench kernels` on the shapes of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slipstream.bench import kernel_run
from slipstream.cli.main import main
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return write_tiny_checkpoint(path, "llama", seed=1, dtype=torch.float32)


def test_every_kernel_is_timed_against_its_twin(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native_kernels()
    out = tmp_path / "kernels.json"
    command = ["bench", "kernels", "--model", str(model_path), "--set", "engine.num_threads=1"]
    formats = "BF16,Q4_1,Q4_1:int8"
    options = ["--rows", "1,20", "--formats", formats, "--context-len", "40", "--repeats", "1"]
    with pytest.raises(SystemExit) as end:
        main([*command, *options, "--json", str(out)])
    assert end.value.code == 0

    document = json.loads(out.read_text())
    kernels = {entry["kernel"]: entry for entry in document["kernels"]}
    shapes = ("qkv 128x64", "attention_output 64x64", "gate_up 256x64", "down 64x128")
    between = ("norm 64", "rotary, store 4+2x16", "gate 128")
    embeddings = ("embedding BF16", "embedding Q4_1", "embedding Q4_1:int8")
    attention = ("attention bfloat16", "attention float32", "attention int8")
    assert set(kernels) == {*shapes, "head 320x64", *between, *embeddings, *attention}
    groups = {entry["group"] for entry in document["kernels"]}
    products = {f"products {name}" for name in formats.split(",")}
    assert groups == {*products, "attention", "rows, one thread"}
    for entry in document["kernels"]:
        assert {"native", "twin"} <= entry["microseconds"].keys()
        assert min(entry["microseconds"].values()) > 0.0
        assert entry["num_bytes"] > 0
        assert entry["bandwidth_share"] > 0.0
    assert len(document["kernels"]) == 2 * (3 * 5 + 3 + 3 + 3)
    assert document["target"]["num_threads"] == 1
    assert document["provenance"]["command"].startswith("slipstream")
    assert "qkv 128x64" in capsys.readouterr().out


def test_without_native_kernels_there_is_nothing_to_measure(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_run, "open_kernels", lambda: None)
    with pytest.raises(SystemExit) as end:
        main(["bench", "kernels", "--model", str(model_path)])
    assert end.value.code == 2
    assert "python -m slipstream.kernels.build" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows takes whole numbers"),
        (["--formats", "Q4_1,Q2_K"], '--formats has "Q2_K"'),
        (["--json", "no/such/folder/x.json"], "cannot be written"),
    ],
)
def test_a_wrong_call_ends_before_anything_is_read(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "kernels", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
