"""Loading checkpoints: names, shapes, ties and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.models.decoder import Model
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.tiny import FAMILIES, write_tiny_checkpoint

Edit = Callable[[dict[str, Tensor]], None]


def load(path: Path, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(open_checkpoint(path), dtype)


def edited(path: Path, edit: Edit) -> Path:
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_knows_its_shape(tmp_path: Path, family: str) -> None:
    model = load(write_tiny_checkpoint(tmp_path, family), torch.bfloat16)

    shape = model.hparams
    assert (shape.vocab_size, shape.num_layers, shape.kv_heads, shape.head_dim) == (320, 4, 2, 16)
    assert model.weight_bytes > 100_000


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "llama")

    with pytest.raises(WeightsError, match="no lm_head"):
        load(edited(path, lambda tensors: tensors.pop("lm_head.weight")))  # type: ignore[arg-type]  # its result is not used


def test_a_tied_model_may_hold_its_head_twice(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "qwen2")

    def repeat(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    assert load(edited(path, repeat)).hparams.has_tied_embeddings


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "llama")
    name = "model.layers.2.mlp.up_proj.weight"

    def remove(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    with pytest.raises(WeightsError, match=name):
        load(edited(path, remove))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "llama")

    def shrink(tensors: dict[str, Tensor]) -> None:
        name = "model.layers.1.self_attn.k_proj.weight"
        tensors[name] = tensors[name][:16].contiguous()

    with pytest.raises(WeightsError, match=r"k_proj.weight has shape \[16, 64\].*\[32, 64\]"):
        load(edited(path, shrink))


def test_a_tensor_that_nothing_uses_is_named(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "llama")

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)

    with pytest.raises(WeightsError, match=r"q_proj\.bias"):
        load(edited(path, add))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_integer_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write_tiny_checkpoint(tmp_path, "llama")

    def quantise(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].to(torch.int8)

    with pytest.raises(WeightsError, match=f"{name} is of type int8"):
        load(edited(path, quantise))


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "qwen3")

    def shrink(tensors: dict[str, Tensor]) -> None:
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        tensors["lm_head.weight"] = head[:-1].clone()

    with pytest.raises(WeightsError, match=r"lm_head\.weight has shape"):
        load(edited(path, shrink))
