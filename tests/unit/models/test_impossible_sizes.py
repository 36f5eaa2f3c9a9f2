"""Sizes in config.json that no model can have are refused by name, before any arithmetic."""

from __future__ import annotations

import pytest
import torch

from slipstream.errors import WeightsError
from slipstream.models.load import read_hparams
from tests.support.tiny import FAMILIES, TinySizes, tiny_config


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_hidden_layers",
        "vocab_size",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_size_below_one_is_refused(family: str, name: str, value: int) -> None:
    with pytest.raises(WeightsError, match=rf"{name} = {value}; it must be at least 1"):
        read_hparams(tiny_config(family, TinySizes(), torch.float32) | {name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_that_must_be_positive_is_refused_otherwise(
    family: str, name: str, value: float
) -> None:
    with pytest.raises(WeightsError, match=f"{name} = .*; it must be a finite number above 0"):
        read_hparams(tiny_config(family, TinySizes(), torch.float32) | {name: value})


@pytest.mark.parametrize("name", ["rope_local_base_freq", "query_pre_attn_scalar"])
def test_numbers_of_gemma_must_be_positive(name: str) -> None:
    with pytest.raises(WeightsError, match=f"{name} = 0.0; it must be a finite number above 0"):
        read_hparams(tiny_config("gemma3_text", TinySizes(), torch.float32) | {name: 0})
