"""8-bit floats with a scale for each block are read as the values that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.errors import WeightsError
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.tiny_families import write_tiny_family

ROWS, COLUMNS = 16, 8
NAME = "model.layers.0.mlp.down_proj.weight"


def write_fp8(folder: Path, **quantization: Any) -> dict[str, torch.Tensor]:
    """A tiny checkpoint with one matrix in 8-bit floats; returns what its tensors stand for."""
    write_tiny_family(folder, "deepseek_v3")
    tensors = load_file(folder / "model.safetensors")
    values = tensors[NAME]
    num_blocks = (-(-values.shape[0] // ROWS), -(-values.shape[1] // COLUMNS))
    scales = torch.rand(num_blocks) + 0.5
    by_value = scales.repeat_interleave(ROWS, 0)[: values.shape[0]]
    by_value = by_value.repeat_interleave(COLUMNS, 1)[:, : values.shape[1]]
    stored = (values / by_value).to(torch.float8_e4m3fn)
    exact = tensors | {NAME: stored.float() * by_value}
    save_file(
        tensors | {NAME: stored, f"{NAME}_scale_inv": scales},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((folder / "config.json").read_text())
    said = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [ROWS, COLUMNS]}
    config["quantization_config"] = said | {"activation_scheme": "dynamic"} | quantization
    (folder / "config.json").write_text(json.dumps(config))
    return exact


def test_values_are_the_products_with_their_scales(tmp_path: Path) -> None:
    exact = write_fp8(tmp_path)
    checkpoint = open_checkpoint(tmp_path)

    assert sorted(checkpoint.names()) == sorted(exact)
    for name, expected in exact.items():
        assert torch.equal(checkpoint.take(name), expected)


def test_a_model_is_made_of_them(tmp_path: Path) -> None:
    write_fp8(tmp_path)

    load_model(open_checkpoint(tmp_path), torch.bfloat16)


def test_scales_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    write_fp8(tmp_path, weight_block_size=[8, 8])

    with pytest.raises(WeightsError, match=rf"{NAME} .* blocks of 8 x 8 need \[4, 6\]"):
        open_checkpoint(tmp_path).take(NAME)


@pytest.mark.parametrize(
    "said",
    [{"quant_method": "awq"}, {"fmt": "e5m2"}, {"weight_block_size": None}],
    ids=["method", "format", "no blocks"],
)
def test_other_quantisations_are_refused_with_what_is_read(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    write_fp8(tmp_path, **said)

    with pytest.raises(WeightsError, match=r"quantised by .*weight_block_size are read"):
        open_checkpoint(tmp_path)


def test_small_floats_without_scales_are_refused(tmp_path: Path) -> None:
    write_fp8(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{NAME}_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})

    with pytest.raises(WeightsError, match=rf"{NAME} is of type float8_e4m3fn"):
        load_model(open_checkpoint(tmp_path), torch.float32)
