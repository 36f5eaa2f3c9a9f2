"""Qwen3-Next: recurrent layers and gated attention in turn, experts with a shared one."""

from __future__ import annotations

from dataclasses import replace

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder, read_partial_rotary, read_rotary
from slipstream.models.hparams import DeltaParams, Hparams, LayerParams, MoeParams
from slipstream.models.qwen3_moe import read_softmax_experts, with_experts

_PARTIAL = 0.25


def read_qwen3_next(config: ConfigReader) -> Hparams:
    """Read a Qwen3-Next config.json."""
    moe = read_shared_experts(config, normalises=config.flag("norm_topk_prob", True))
    # Its public files have one head, under mtp.*, and no field that says so; GGUF says it.
    config.ignore("mtp_num_hidden_layers")
    hparams = read_hybrid(config, "qwen3_next", is_interleaved=True)
    return replace(hparams, layers=with_experts(config, hparams.layers, moe))


def read_hybrid(
    config: ConfigReader, family: str, *, is_interleaved: bool, intermediate_size: int | None = None
) -> Hparams:
    """What Qwen's families with recurrent layers share.

    Args:
        is_interleaved: As `DeltaParams.is_interleaved`.
        intermediate_size: As for `read_decoder`.
    """
    config.require("attention_bias", False)
    config.require("attn_output_gate", True)
    rotary = read_rotary(config, allows_partial=True)
    attention = LayerParams(None, rotary)
    recurrent = LayerParams(None, rotary, delta=_read_delta(config, is_interleaved))
    hparams = read_decoder(
        config,
        family,
        _read_layers(config, attention, recurrent),
        intermediate_size=intermediate_size,
    )
    return replace(
        hparams,
        has_qk_norm=True,
        is_norm_zero_centred=True,
        has_output_gate=True,
        partial_rotary_dim=read_partial_rotary(config, hparams.head_dim, _PARTIAL),
    )


def read_shared_experts(config: ConfigReader, *, normalises: bool) -> MoeParams:
    """Experts beside one that every row goes through, weighed by a gate of its own."""
    return replace(
        read_softmax_experts(config, normalises=normalises),
        shared_size=config.count("shared_expert_intermediate_size"),
        is_shared_gated=True,
    )


def _read_delta(config: ConfigReader, is_interleaved: bool) -> DeltaParams:
    delta = DeltaParams(
        key_heads=config.count("linear_num_key_heads"),
        value_heads=config.count("linear_num_value_heads"),
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        kernel_len=config.count("linear_conv_kernel_dim", 4),
        is_interleaved=is_interleaved,
        is_tiled=config.flag("linear_value_heads_tiled", False),
    )
    if delta.value_heads % delta.key_heads:
        raise WeightsError(
            f"config.json has linear_num_value_heads = {delta.value_heads} and "
            f"linear_num_key_heads = {delta.key_heads}; the former must be a multiple"
        )
    return delta


def _read_layers(
    config: ConfigReader, attention: LayerParams, recurrent: LayerParams
) -> tuple[LayerParams, ...]:
    """By `layer_types`, or every `full_attention_interval`th layer has attention."""
    num_layers = config.count("num_hidden_layers")
    interval = config.count("full_attention_interval", 4)
    kinds = {"full_attention": attention, "linear_attention": recurrent}
    types = config.texts("layer_types") or tuple(
        "linear_attention" if (index + 1) % interval else "full_attention"
        for index in range(num_layers)
    )
    if len(types) != num_layers or not set(types) <= set(kinds) or "full_attention" not in types:
        raise WeightsError(
            f"config.json has layer_types {sorted(set(types))} for {len(types)} layers; it must "
            f"name {num_layers} layers, each full_attention or linear_attention, with at least "
            "one of the former"
        )
    return tuple(kinds[kind] for kind in types)


FAMILY = Family("qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next)
