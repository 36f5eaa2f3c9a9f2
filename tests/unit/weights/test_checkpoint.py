"""Every tensor of a checkpoint is used exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.errors import WeightsError
from slipstream.weights.open import open_checkpoint
from tests.support.tiny import FAMILIES, write_tiny_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny", num_layers=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_taking_everything_leaves_nothing(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, family, dtype=dtype))

    dtypes = {checkpoint.take(name).dtype for name in checkpoint.names()}

    checkpoint.finish()
    assert dtypes == {dtype}
    assert checkpoint.config["model_type"] == family


def test_a_tensor_left_over_is_named(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name in checkpoint.names():
        if name != "lm_head.weight":
            checkpoint.take(name)

    with pytest.raises(WeightsError, match=r"1 tensors that the model does not use: lm_head"):
        checkpoint.finish()


def test_many_tensors_left_over_are_counted(folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"and 4 more"):
        open_checkpoint(folder).finish()


def test_taking_twice_is_an_error(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.take("model.norm.weight")

    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' .* second time"):
        checkpoint.take("model.norm.weight")


def test_a_missing_tensor_is_named_with_its_nearest(folder: Path) -> None:
    with pytest.raises(
        WeightsError, match=r"no tensor 'model\.norms\.weight'; nearest are model\.norm"
    ):
        open_checkpoint(folder).take("model.norms.weight")


def test_optional_is_none_where_there_is_no_such_tensor(folder: Path) -> None:
    assert open_checkpoint(folder).optional("lm_head.bias") is None


def test_optional_takes_what_is_there(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)

    assert checkpoint.optional("lm_head.weight") is not None

    with pytest.raises(WeightsError, match="second time"):
        checkpoint.take("lm_head.weight")


def test_rotary_buffers_are_skipped_with_a_reason(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors")

    checkpoint = open_checkpoint(folder)
    for name in checkpoint.names():
        checkpoint.take(name)

    checkpoint.finish()
    assert list(checkpoint.skipped) == ["model.layers.0.self_attn.rotary_emb.inv_freq"]


def test_a_tensor_can_be_skipped_for_a_stated_reason(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.skip("lm_head.weight", "a copy of the tied embedding")
    for name in checkpoint.names():
        checkpoint.take(name)

    checkpoint.finish()
    assert checkpoint.skipped == {"lm_head.weight": "a copy of the tied embedding"}


def test_safetensors_have_no_raw_blocks(folder: Path) -> None:
    assert open_checkpoint(folder).raw("lm_head.weight") is None


def test_generation_config_decides_the_end_of_sequence(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')

    assert open_checkpoint(folder).config["eos_token_id"] == [2, 0]
