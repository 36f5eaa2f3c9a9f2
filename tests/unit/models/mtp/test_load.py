"""Which heads a checkpoint has, and which of them are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.models.decoder import Model
from slipstream.models.load import load_model
from slipstream.models.mtp.heads import MtpHeads
from slipstream.models.mtp.layout import find_heads
from slipstream.models.mtp.load import describe_heads, load_heads
from slipstream.weights.open import open_checkpoint
from tests.support.gguf_families import write_family_gguf
from tests.support.mtp import write_head_folder
from tests.support.tiny_families import CONFIGS, VOCAB_SIZE, write_tiny_family

Tensors = dict[str, Tensor]


def target_at(path: Path) -> Model:
    return load_model(open_checkpoint(path), torch.float32)


def heads_of(path: Path, target: Model | None = None) -> MtpHeads:
    return load_heads(open_checkpoint(path), target or target_at(path), torch.float32)


def edit(path: Path, change: Callable[[Tensors], None]) -> Path:
    file = path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return path


def without(tensors: Tensors, name: str) -> None:
    del tensors[name]


@pytest.mark.parametrize(
    ("family", "layout", "num_heads"),
    [
        ("deepseek_v3", "DeepSeek", 1),
        ("deepseek_v3", "DeepSeek", 2),
        ("qwen3_next", "Qwen", 1),
        ("qwen3_5", "Qwen", 1),
        ("qwen3_5_moe", "Qwen", 1),
    ],
)
def test_heads_are_found_in_the_targets_own_file(
    tmp_path: Path, family: str, layout: str, num_heads: int
) -> None:
    changes: dict[str, Any] = {"num_nextn_predict_layers": 2} if num_heads == 2 else {}
    path = write_tiny_family(tmp_path, family, **changes)
    described = describe_heads(open_checkpoint(path))
    assert described is not None
    assert described.layout.name == layout
    heads = heads_of(path)
    assert heads.num_heads == num_heads
    assert heads.hparams.state_shape is None, "a head's layer is one with attention"


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5"])
def test_heads_are_found_in_gguf_files(tmp_path: Path, family: str) -> None:
    file = write_family_gguf(tmp_path / "model.gguf", gguf_source(tmp_path, family), has_head=True)
    heads = heads_of(file)
    assert heads.num_heads == 1
    assert torch.isfinite(heads.logits(0, torch.ones(2, 32))).all()


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5"])
def test_a_gguf_file_without_the_tensors_of_its_head_is_refused(
    tmp_path: Path, family: str
) -> None:
    said = {"nextn_predict_layers": 1, "block_count": 4}
    source = gguf_source(tmp_path, family)
    target = target_at(write_family_gguf(tmp_path / "whole.gguf", source, has_head=True))
    file = write_family_gguf(tmp_path / "cut.gguf", source, extra=said)
    with pytest.raises(WeightsError, match=r"there is no tensor .*norm"):
        heads_of(file, target)


def gguf_source(path: Path, family: str) -> Path:
    """A checkpoint that the format can express: one factor of DeepSeek's YaRN, not two."""
    changes: dict[str, Any] = {}
    if family == "deepseek_v3":
        changes = {"rope_scaling": CONFIGS[family]["rope_scaling"] | {"mscale": 0.8}}
    return write_tiny_family(path / "folder", family, **changes)


def test_a_model_without_heads_is_refused_as_such(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_moe")
    assert describe_heads(open_checkpoint(path)) is None
    with pytest.raises(WeightsError, match="holds no multi-token-prediction head"):
        heads_of(path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("deepseek_v3", "model.layers.3.eh_proj.weight"),
        ("deepseek_v3", "model.layers.3.mlp.experts.4.up_proj.weight"),
        ("qwen3_5", "mtp.fc.weight"),
        ("qwen3_5", "mtp.layers.0.self_attn.k_proj.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, family: str, name: str) -> None:
    path = edit(write_tiny_family(tmp_path, family), lambda tensors: without(tensors, name))
    target = target_at(path)
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")):
        heads_of(path, target)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    edit(path, lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(32, 32)}))
    with pytest.raises(WeightsError, match=r"tensor mtp\.fc\.weight has shape \[32, 32\]"):
        heads_of(path)


def test_a_tensor_that_no_head_has_is_named(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    edit(path, lambda tensors: tensors.update({"mtp.layers.1.norm.weight": torch.ones(32)}))
    with pytest.raises(WeightsError, match=r"mtp\.layers\.1\.norm\.weight"):
        heads_of(path)


def test_a_head_behind_another_layer_is_of_another_depth() -> None:
    config = {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    with pytest.raises(WeightsError, match=r"model\.layers\.61 is for a decoder of another depth"):
        find_heads(config, ["model.layers.61.eh_proj.weight"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 9}, "a target of 9 layers, this one has 3"),
        ({"vocab_size": 500}, "vocabulary has 500 tokens, the target's 320"),
        ({"hidden_size": 64}, "states of 64 values, the target's have 32"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers = 2"),
    ],
)
def test_a_head_for_another_target_is_refused(
    tmp_path: Path, fields: dict[str, int], message: str
) -> None:
    path = write_tiny_family(tmp_path / "target", "qwen3_moe")
    head = write_head_folder(tmp_path / "head", path, changes=fields)
    with pytest.raises(WeightsError, match=message):
        heads_of(head, target_at(path))


def test_a_reduced_vocabulary_reads_rows_of_the_targets_head(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path / "target", "qwen3_moe")
    target, known = target_at(path), [3, 17, 200, 319]
    whole = heads_of(write_head_folder(tmp_path / "whole", path), target)
    some = heads_of(write_head_folder(tmp_path / "some", path, draft_token_ids=known), target)
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    assert some.token_ids().tolist() == known
    described = describe_heads(open_checkpoint(tmp_path / "some"))
    assert described is not None
    assert some.weight_bytes == 4 * described.num_parameters, "what is told is what is held"
    torch.testing.assert_close(some.logits(0, hidden), whole.logits(0, hidden)[:, known])


def test_a_reduced_vocabulary_without_its_map_is_refused(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path / "target", "qwen3_moe")
    head = write_head_folder(tmp_path / "head", path, changes={"draft_vocab_size": 8})
    with pytest.raises(WeightsError, match="knows 8 of 320 tokens, which takes the tensor d2t"):
        heads_of(head, target_at(path))


def test_matrices_that_repeat_the_decoders_are_not_loaded_again(tmp_path: Path) -> None:
    own = heads_of(write_tiny_family(tmp_path / "own", "deepseek_v3"))
    path = write_tiny_family(tmp_path / "same", "deepseek_v3")

    def repeat(tensors: Tensors) -> None:
        tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.3.shared_head.head.weight"] = tensors["lm_head.weight"].clone()

    same = heads_of(edit(path, repeat))
    assert own.weight_bytes - same.weight_bytes == 2 * VOCAB_SIZE * 32 * 4


def test_a_single_head_drafts_any_length_and_several_one_token_each(tmp_path: Path) -> None:
    one = heads_of(write_tiny_family(tmp_path / "one", "deepseek_v3"))
    two = heads_of(write_tiny_family(tmp_path / "two", "deepseek_v3", num_nextn_predict_layers=2))
    assert (one.most_drafts(5), two.most_drafts(5), two.most_drafts(1)) == (5, 2, 1)
