"""Llama 2 and 3, SmolLM2 and other models of that layout."""

from __future__ import annotations

from dataclasses import replace

from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder, read_layers, read_rotary
from slipstream.models.hparams import Hparams, LayerParams


def read_llama(config: ConfigReader) -> Hparams:
    """Read a Llama config.json: full attention, biases where it says so."""
    layer = LayerParams(window=None, rotary=read_rotary(config))
    layers = read_layers(config, layer, layer, lambda _: False)
    has_bias = config.flag("attention_bias", False)
    return replace(
        read_decoder(config, "llama", layers),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


FAMILY = Family("llama", "LlamaForCausalLM", read_llama)
