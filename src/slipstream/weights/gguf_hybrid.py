"""What config.json says of recurrent layers and latent attention, from a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

from slipstream.errors import WeightsError
from slipstream.weights.gguf_experts import grouped_expert_fields, shared_expert_fields
from slipstream.weights.gguf_metadata import MetadataReader, shortest

_INTERVAL = 4
_QWEN35 = ("qwen3_5_text", "qwen3_5_moe_text")


def num_head_layers(reader: MetadataReader) -> int:
    """Layers behind the decoder's last: multi-token-prediction heads, which `block_count` counts.

    Raises:
        WeightsError: They leave no layer to the decoder.
    """
    count, heads = (
        reader.require("block_count", int),
        reader.optional("nextn_predict_layers", 0, int),
    )
    if heads >= max(count, 1):
        raise WeightsError(
            f"the file has block_count = {count} and nextn_predict_layers = {heads}, which leaves "
            "the decoder no layer",
            hint="a file of heads alone is no target; name the one with the decoder",
        )
    return heads


def hybrid_fields(reader: MetadataReader, model_type: str) -> dict[str, Any]:
    """Fields of Qwen3-Next and Qwen3.5.

    Raises:
        WeightsError: The value heads do not divide what they share.
    """
    num_values, inner_size = (
        reader.require(f"ssm.{key}", int) for key in ("time_step_rank", "inner_size")
    )
    if not num_values or inner_size % num_values:
        raise WeightsError(
            f"the file has ssm.inner_size = {inner_size} for ssm.time_step_rank = {num_values} "
            "heads; the former must be a multiple"
        )
    fields: dict[str, Any] = {
        "full_attention_interval": reader.optional("full_attention_interval", _INTERVAL, int),
        "linear_conv_kernel_dim": reader.require("ssm.conv_kernel", int),
        "linear_key_head_dim": reader.require("ssm.state_size", int),
        "linear_num_key_heads": reader.require("ssm.group_count", int),
        "linear_num_value_heads": num_values,
        "linear_value_head_dim": inner_size // num_values,
        "mtp_num_hidden_layers": num_head_layers(reader) or None,
    }
    if model_type in _QWEN35:
        # The converter orders value heads so that neighbours belong to different key heads.
        fields["linear_value_heads_tiled"] = True
    if model_type == "qwen3_5_text":
        return fields
    return fields | shared_expert_fields(reader)


def latent_fields(reader: MetadataReader) -> dict[str, Any]:
    """Fields of DeepSeek-V3. Files from before latent attention was kept give other lengths."""
    rope_dim = reader.require("rope.dimension_count", int)
    key_dim = reader.optional("attention.key_length_mla", 0, int)
    value_dim = reader.optional("attention.value_length_mla", 0, int)
    if not key_dim:
        key_dim = reader.require("attention.key_length", int)
        value_dim = reader.require("attention.value_length", int)
    return grouped_expert_fields(reader) | {
        "kv_lora_rank": reader.require("attention.kv_lora_rank", int),
        "num_nextn_predict_layers": num_head_layers(reader),
        "q_lora_rank": reader.optional("attention.q_lora_rank", 0, int) or None,
        "qk_nope_head_dim": key_dim - rope_dim,
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": value_dim,
    }


def latent_scaling(reader: MetadataReader, scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    """YaRN with the factor on all of a head, of which llama.cpp keeps a tenth.

    The factor on the rotated part alone is not kept; llama.cpp takes it to be the same.
    """
    log_factor = shortest(reader.optional("rope.scaling.yarn_log_multiplier", 0.0, float))
    if scaling is None or not log_factor:
        return scaling
    mscale = shortest(log_factor * 10)
    return scaling | {"mscale": mscale, "mscale_all_dim": mscale}
