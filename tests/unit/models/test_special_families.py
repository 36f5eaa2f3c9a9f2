"""Checkpoints with experts, latent attention and recurrent layers, as public files spell them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.errors import WeightsError
from slipstream.models.hparams import MoeParams
from slipstream.models.layers.moe import choose
from slipstream.models.load import load_model, read_hparams
from slipstream.weights.open import open_checkpoint
from tests.support.gguf_files import write_tiny_gguf
from tests.support.native import native_kernels
from tests.support.paths import shared_dir
from tests.support.tiny_families import CONFIGS, write_tiny_family

GROUPED = MoeParams(
    6, 2, 8, scoring="sigmoid", has_bias=True, num_groups=3, num_chosen_groups=1, weight_scale=2.0
)


def test_experts_stored_one_by_one_are_those_stored_in_one_tensor(tmp_path: Path) -> None:
    fused = shared_dir("golden", "open", "targets", "qwen3_5_moe")
    tensors = load_file(fused / "model.safetensors")
    single = load_file(fused / "alt_per_expert.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    save_file(kept | single, tmp_path / "model.safetensors", {"format": "pt"})
    shutil.copy(fused / "config.json", tmp_path)
    checkpoint = tmp_path / "fused"
    checkpoint.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(fused / name, checkpoint)

    models = [load_model(open_checkpoint(path), torch.float32) for path in (tmp_path, checkpoint)]

    x = torch.randn(1, 64)
    for one, other in zip(models[0].layers, models[1].layers, strict=True):
        for mine, theirs in zip(one.linears(), other.linears(), strict=True):
            if mine.shape[1] == 64:
                assert torch.equal(mine(x), theirs(x))


@pytest.mark.parametrize("matrix_type", ["F32", "Q8_0"])
def test_experts_of_a_gguf_file_are_those_of_the_checkpoint(
    tmp_path: Path, matrix_type: str
) -> None:
    path = write_tiny_family(
        tmp_path / "folder", "qwen3_moe", mlp_only_layers=[], moe_intermediate_size=32
    )
    gguf = write_tiny_gguf(tmp_path / "model.gguf", path, matrix_type=matrix_type)
    kernels = None if matrix_type == "F32" else native_kernels()
    dtype = torch.float32 if kernels is None else torch.bfloat16

    folder, file = (
        load_model(open_checkpoint(place), dtype, kernels=kernels) for place in (path, gguf)
    )

    assert folder.hparams == file.hparams
    bound = 0.0 if kernels is None else 0.1
    for one, other in zip(folder.layers, file.layers, strict=True):
        for mine, theirs in zip(one.linears(), other.linears(), strict=True):
            x = torch.randn(1, mine.shape[1]).to(mine.dtype)
            torch.testing.assert_close(mine(x), theirs(x), atol=bound, rtol=bound)


def test_only_experts_of_the_best_group_are_chosen_and_the_bias_weighs_nothing() -> None:
    logits = torch.tensor([[4.0, -9.0, 1.0, 1.0, 0.0, 0.0]])
    bias = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0])

    choice = choose(logits, bias, GROUPED)

    assert choice.experts.tolist() == [[2, 3]]
    assert choice.weights.tolist() == [[1.0, 1.0]]


def test_of_equal_experts_the_lower_ones_are_chosen() -> None:
    choice = choose(torch.zeros(1, 5), None, MoeParams(5, 2, 8))

    assert choice.experts.tolist() == [[0, 1]]


def test_vision_towers_and_prediction_heads_are_left_unread_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    checkpoint = open_checkpoint(path)
    with caplog.at_level(logging.INFO, "slipstream.models"):
        load_model(checkpoint, torch.float32)

    assert "1 tensors are not read: the vision tower: only text is served" in caplog.text
    assert "a multi-token-prediction head" in caplog.text
    assert "model.visual.blocks.0.norm1.weight" in checkpoint.skipped


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 of num_experts = 6"),
        ("deepseek_v3", {"n_group": 4}, "groups must be equal"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "must be a multiple"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 3}, "at least one of the former"),
        ("qwen3_next", {"partial_rotary_factor": 0.2}, "even number of rotated values"),
        ("qwen3_next", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_5", {"text_config": None}, "lacks text_config"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    family: str, changes: dict[str, object], told: str
) -> None:
    with pytest.raises(WeightsError, match=told):
        read_hparams(json.loads(json.dumps(CONFIGS[family] | changes)))


def test_plain_families_still_refuse_partial_rotary_embedding() -> None:
    config = CONFIGS["qwen3_moe"] | {"partial_rotary_factor": 0.5}
    with pytest.raises(WeightsError, match="partial_rotary_factor"):
        read_hparams(config)


def test_queries_without_a_latent_of_their_own_load_too(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "deepseek_v3", q_lora_rank=None)

    hparams = load_model(open_checkpoint(path), torch.float32).hparams

    assert hparams.latent is not None
    assert hparams.latent.query_rank is None
    assert hparams.kv_shape.bytes_per_token(torch.float32) == 3 * (24 + 8) * 4
