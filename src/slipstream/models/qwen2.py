"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder, read_layers, read_rotary
from slipstream.models.hparams import Hparams, LayerParams

DEFAULT_FIRST_SLIDING = 28  # transformers' value where config.json has no max_window_layers


def read_qwen2(config: ConfigReader) -> Hparams:
    """Read a Qwen2 config.json."""
    return replace(read_decoder(config, "qwen2", read_qwen_layers(config)), qkv_bias=True)


def read_qwen_layers(config: ConfigReader) -> tuple[LayerParams, ...]:
    """Layers from `max_window_layers` on slide, if `use_sliding_window` says so."""
    slides = config.flag("use_sliding_window", False)
    window = config.count("sliding_window", 4096) if slides else None
    config.integer("sliding_window", 0)  # without the flag its value has no effect
    first_sliding = config.integer("max_window_layers", DEFAULT_FIRST_SLIDING)
    rotary = read_rotary(config)
    return read_layers(
        config,
        LayerParams(None, rotary),
        LayerParams(window, rotary),
        lambda layer: slides and layer >= first_sliding,
    )


FAMILY = Family("qwen2", "Qwen2ForCausalLM", read_qwen2)
