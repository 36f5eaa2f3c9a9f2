"""A GGUF file opens as the checkpoint that it was converted from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slipstream.errors import WeightsError
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.gguf_config import llama3_factors
from slipstream.weights.open import open_checkpoint
from tests.support.gguf_files import write_tiny_gguf
from tests.support.models import default_model_path
from tests.support.tiny import FAMILIES, write_tiny_checkpoint

NOT_IN_GGUF = {"attention_dropout", "initializer_range", "torch_dtype", "use_cache"}
NOT_IN_GGUF |= {"max_window_layers", "pad_token_id"}


def open_converted(tmp_path: Path, family: str = "llama", **options: Any) -> Checkpoint:
    folder = write_tiny_checkpoint(tmp_path / family, family)
    return open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", folder, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_come_back_under_their_public_names(tmp_path: Path, family: str) -> None:
    checkpoint = open_converted(tmp_path, family)
    original = load_file(tmp_path / family / "model.safetensors")

    assert sorted(checkpoint.names()) == sorted(original)
    for name, expected in original.items():
        assert checkpoint.shape(name) == tuple(expected.shape)
        # Adding and taking away Gemma's 1 rounds.
        tolerance = 1e-6 if family == "gemma3_text" and "norm" in name else 0.0
        torch.testing.assert_close(checkpoint.take(name), expected, rtol=0, atol=tolerance)
    checkpoint.finish()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_says_what_config_json_says(tmp_path: Path, family: str) -> None:
    checkpoint = open_converted(tmp_path, family)
    original = json.loads((tmp_path / family / "config.json").read_text())

    expected = {key: value for key, value in original.items() if key not in NOT_IN_GGUF}
    assert {key: checkpoint.config.get(key) for key in expected} == expected


def test_half_precision_stays_as_stored(tmp_path: Path) -> None:
    for kind, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        checkpoint = open_converted(tmp_path, matrix_type=kind)
        original = load_file(tmp_path / "llama" / "model.safetensors")
        for name in ("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"):
            torch.testing.assert_close(
                checkpoint.take(name), original[name].to(dtype), rtol=0, atol=0
            )


def test_raw_blocks_are_the_values_in_the_public_order_of_rows(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    checkpoint = open_converted(tmp_path, matrix_type="Q4_1")
    other = open_checkpoint(checkpoint.path)

    blocks = checkpoint.raw(name)

    assert blocks is not None
    assert (blocks.block.name, blocks.shape) == ("Q4_1", (32, 64))
    np.testing.assert_array_equal(blocks.dequantize(), other.take(name).numpy())


def test_raw_counts_as_taking(tmp_path: Path) -> None:
    checkpoint = open_converted(tmp_path, matrix_type="Q8_0")

    checkpoint.raw("model.embed_tokens.weight")

    with pytest.raises(WeightsError, match="second time"):
        checkpoint.take("model.embed_tokens.weight")


def test_raw_of_a_plain_tensor_is_none_and_leaves_it_untaken(tmp_path: Path) -> None:
    checkpoint = open_converted(tmp_path, matrix_type="Q8_0")

    assert checkpoint.raw("model.norm.weight") is None
    assert checkpoint.take("model.norm.weight").shape == (64,)


def test_llama3_rotary_factors_become_rope_scaling(tmp_path: Path) -> None:
    factors = llama3_factors(10000.0, 16, 8.0, 8192).astype(np.float32)
    checkpoint = open_converted(tmp_path, rope_factors=factors)

    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" in checkpoint.skipped


def test_rotary_factors_of_one_scale_nothing(tmp_path: Path) -> None:
    checkpoint = open_converted(tmp_path, rope_factors=np.ones(8, np.float32))

    assert checkpoint.config["rope_scaling"] is None


def test_rotary_factors_of_no_known_rule_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not follow Llama 3's rule"):
        open_converted(tmp_path, rope_factors=np.linspace(1, 9, 8, dtype=np.float32))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
    ],
)
def test_rope_scaling_follows_the_metadata(
    tmp_path: Path, extra: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    assert open_converted(tmp_path, extra=extra).config["rope_scaling"] == expected


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.attention.value_length": 8}, "different lengths"),
        ({"llama.feed_forward_length": [128, 64]}, "layers of different sizes"),
        ({"llama.block_count": "four"}, "type int is expected"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_what_cannot_be_expressed_is_refused(
    tmp_path: Path, extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(WeightsError, match=message):
        open_converted(tmp_path, extra=extra)


def test_end_of_turn_joins_end_of_sequence(tmp_path: Path) -> None:
    checkpoint = open_converted(tmp_path, extra={"tokenizer.ggml.eot_token_id": 9})

    assert checkpoint.config["eos_token_id"] == [2, 9]


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_checkpoint(tmp_path / "llama"))
    path.write_bytes(
        path.read_bytes().replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba", 1)
    )

    with pytest.raises(WeightsError, match=r"'mamba'; supported in GGUF are llama, qwen2"):
        open_checkpoint(path)


@pytest.mark.model
def test_the_default_model_opens_whole() -> None:
    checkpoint = open_checkpoint(default_model_path())

    num_parameters = sum(checkpoint.take(name).numel() for name in checkpoint.names())
    checkpoint.finish()

    assert num_parameters == 134_515_008
    assert checkpoint.config["tie_word_embeddings"] is True
    assert checkpoint.config["rms_norm_eps"] == 1e-5
