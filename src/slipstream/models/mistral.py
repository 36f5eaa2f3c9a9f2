"""Mistral: Llama with a sliding window on every layer, or on none."""

from __future__ import annotations

from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder, read_layers, read_rotary
from slipstream.models.hparams import Hparams, LayerParams


def read_mistral(config: ConfigReader) -> Hparams:
    """Read a Mistral config.json; `sliding_window: null` means full attention."""
    window = config.count("sliding_window") if config.has("sliding_window") else None
    rotary = read_rotary(config)
    layers = read_layers(
        config, LayerParams(None, rotary), LayerParams(window, rotary), lambda _: window is not None
    )
    return read_decoder(config, "mistral", layers)


FAMILY = Family("mistral", "MistralForCausalLM", read_mistral)
