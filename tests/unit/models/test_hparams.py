"""Reading config.json: families, both spellings, and the refusal of what is not understood."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.errors import WeightsError
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.load import read_hparams
from tests.support.tiny import TinySizes, tiny_config


def read(family: str, **changes: Any) -> Hparams:  # any JSON
    config = tiny_config(family, TinySizes(num_layers=6), torch.bfloat16) | changes
    return read_hparams({name: value for name, value in config.items() if value != "absent"})


def windows(hparams: Hparams) -> list[int | None]:
    return [layer.window for layer in hparams.layers]


@pytest.mark.parametrize(
    ("family", "ties"),
    [
        ("llama", False),
        ("mistral", False),
        ("qwen2", False),
        ("qwen3", False),
        ("gemma3_text", True),
    ],
)
def test_embeddings_are_tied_by_the_familys_default(family: str, ties: bool) -> None:
    assert read(family, tie_word_embeddings="absent").has_tied_embeddings is ties
    assert read(family, tie_word_embeddings=not ties).has_tied_embeddings is not ties


def test_head_size_and_key_heads_have_the_usual_defaults() -> None:
    hparams = read("llama", head_dim="absent", num_key_value_heads="absent")

    assert (hparams.head_dim, hparams.kv_heads) == (16, 4)


def test_biases_follow_the_family_and_its_switches() -> None:
    assert read("qwen2").qkv_bias
    assert not read("qwen2").output_bias
    llama = read("llama", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)


def test_rotary_parameters_are_read_in_both_spellings() -> None:
    old = read("llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4})
    new = read(
        "llama",
        rope_theta="absent",
        rope_scaling="absent",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0},
    )

    assert old.layers[0].rotary == RotaryParams(5e5, "linear", 4.0)
    assert old.layers == new.layers


def test_llama3_scaling_needs_all_of_its_numbers() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}

    with pytest.raises(WeightsError, match="high_freq_factor"):
        read("llama", rope_scaling=scaling)


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "su"])
def test_unsupported_rotary_scaling_is_refused_by_name(kind: str) -> None:
    with pytest.raises(WeightsError, match=f"'{kind}'.*supported are default, linear, llama3"):
        read("llama", rope_scaling={"rope_type": kind, "factor": 2.0})


def test_mistral_slides_on_every_layer_or_on_none() -> None:
    assert windows(read("mistral", sliding_window=12)) == [12] * 6
    assert windows(read("mistral", sliding_window=None)) == [None] * 6


def test_qwen_slides_only_where_the_switch_is_on_and_from_the_named_layer() -> None:
    assert windows(read("qwen3", sliding_window=32)) == [None] * 6
    sliding = read("qwen3", sliding_window=32, use_sliding_window=True, max_window_layers=4)
    assert windows(sliding) == [None] * 4 + [32] * 2


def test_gemma_alternates_windows_and_rotary_bases() -> None:
    hparams = read("gemma3_text", sliding_window=16, sliding_window_pattern=3)

    assert windows(hparams) == [16, 16, None, 16, 16, None]
    assert [layer.rotary.theta for layer in hparams.layers[:3]] == [1e4, 1e4, 1e6]


def test_gemma_is_read_in_the_newer_spelling_too() -> None:
    old = read("gemma3_text", sliding_window_pattern=3)
    new = read(
        "gemma3_text",
        sliding_window_pattern="absent",
        rope_theta="absent",
        rope_local_base_freq="absent",
        rope_scaling="absent",
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )

    assert old == new


def test_gemma_scales_attention_by_its_own_number_and_embeddings_by_the_root_of_their_size() -> (
    None
):
    hparams = read("gemma3_text", query_pre_attn_scalar=24)

    assert hparams.attention_scale == pytest.approx(24**-0.5)
    assert hparams.embedding_scale == pytest.approx(8.0)


@pytest.mark.parametrize("field", ["final_logit_softcapping", "attn_logit_softcapping"])
def test_gemma_with_capped_logits_is_refused(field: str) -> None:
    with pytest.raises(WeightsError, match=field):
        read("gemma3_text", **{field: 30.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_multiplier", 0.5),
        ("partial_rotary_factor", 0.5),
        ("num_local_experts", 8),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_fields_that_change_the_arithmetic_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(WeightsError, match=field):
        read("llama", **{field: value})


def test_fields_that_turn_nothing_on_are_ignored() -> None:
    plain = read("llama")

    assert read("llama", some_switch=False, some_list=[], some_value=None) == plain
    assert read("llama", temperature=0.7, _name_or_path="x", eos_token_id=[1, 2]) == plain
    assert read("llama", unk_token_id=0, pad_token_id=2) == plain


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("hidden_size", "64", "a number"),
        ("num_hidden_layers", 2.5, "a whole number"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("rope_scaling", 4, "an object"),
        ("layer_types", "full", "a list of strings"),
        ("hidden_act", 1, "a string"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(WeightsError, match=f"{field} = .*{allowed}"):
        read("llama", **{field: value})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(WeightsError, match="lacks intermediate_size"):
        read("llama", intermediate_size="absent")


def test_an_unknown_activation_is_refused_with_those_that_are_supported() -> None:
    with pytest.raises(WeightsError, match="'relu2'; supported are gelu_pytorch_tanh"):
        read("llama", hidden_act="relu2")


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(WeightsError, match="multiple of key heads"):
        read("llama", num_key_value_heads=3)


@pytest.mark.parametrize(
    "types", [["full_attention"] * 5, ["linear_attention"] * 6], ids=["too few", "unknown"]
)
def test_layer_types_must_name_every_layer(types: list[str]) -> None:
    with pytest.raises(WeightsError, match="name 6 layers"):
        read("qwen3", layer_types=types)


def test_sliding_layers_need_a_window() -> None:
    with pytest.raises(WeightsError, match="no sliding_window"):
        read("qwen3", layer_types=["sliding_attention"] * 6)


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForSequenceClassification")],
)
def test_an_unsupported_family_is_refused_with_those_that_are_supported(
    model_type: str, architecture: str
) -> None:
    with pytest.raises(WeightsError, match=r"supported are llama \(LlamaForCausalLM\), mistral"):
        read("llama", model_type=model_type, architectures=[architecture])
