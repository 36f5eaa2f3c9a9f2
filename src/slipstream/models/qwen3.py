"""Qwen3 (dense): normalised queries and keys, a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder
from slipstream.models.hparams import Hparams
from slipstream.models.qwen2 import read_qwen_layers


def read_qwen3(config: ConfigReader) -> Hparams:
    """Read a Qwen3 config.json."""
    has_bias = config.flag("attention_bias", False)
    return replace(
        read_decoder(config, "qwen3", read_qwen_layers(config)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_qk_norm=True,
    )


FAMILY = Family("qwen3", "Qwen3ForCausalLM", read_qwen3)
