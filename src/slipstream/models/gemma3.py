"""Gemma 3, text: sandwich norms, two rotary bases, mostly sliding layers, scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import (
    Family,
    read_decoder,
    read_layers,
    read_rotary,
    read_rotary_section,
)
from slipstream.models.hparams import Hparams, LayerParams, RotaryParams


def read_gemma3(config: ConfigReader) -> Hparams:
    """Read the config.json of a Gemma 3 text model."""
    config.require("partial_rotary_factor", 1.0)
    config.require("attn_logit_softcapping", None)
    config.require("final_logit_softcapping", None)
    config.require("use_bidirectional_attention", False)
    full_rotary, sliding_rotary = _read_rotaries(config)
    pattern = config.count("sliding_window_pattern", 6)
    layers = read_layers(
        config,
        LayerParams(None, full_rotary),
        LayerParams(config.count("sliding_window", 4096), sliding_rotary),
        lambda layer: (layer + 1) % pattern != 0,
    )
    field = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    hparams = read_decoder(
        config, "gemma3_text", layers, ties_embeddings=True, activation_field=field
    )
    config.text("hidden_act", "")  # older files carry it beside hidden_activation, which counts
    has_bias = config.flag("attention_bias", False)
    return replace(
        hparams,
        attention_scale=config.positive("query_pre_attn_scalar", hparams.head_dim) ** -0.5,
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_qk_norm=True,
        is_norm_zero_centred=True,
        has_sandwich_norms=True,
        embedding_scale=hparams.hidden_size**0.5,
    )


def _read_rotaries(config: ConfigReader) -> tuple[RotaryParams, RotaryParams]:
    """Rotary parameters of full and of sliding layers."""
    local_theta = config.positive("rope_local_base_freq", 10000.0)
    section = config.section("rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if section is None or not any(section.has(kind) for kind in kinds):
        return read_rotary(config, 1e6), RotaryParams(local_theta)
    theta = config.positive("rope_theta", 1e6)
    read = []
    for kind, default in zip(kinds, (theta, local_theta), strict=True):
        part = section.section(kind)
        name = f"rope_parameters.{kind}"
        read.append(
            read_rotary_section(part, name, default, config) if part else RotaryParams(default)
        )
    section.finish()
    return read[0], read[1]


FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", read_gemma3)
