"""What config.json says of experts, from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from slipstream.errors import WeightsError
from slipstream.weights.gguf_metadata import MetadataReader

EXPERT_ARCHITECTURES = ("qwen3moe", "qwen3next", "qwen35moe", "deepseek2")

_SCORINGS = {0: "softmax", 1: "softmax", 2: "sigmoid"}  # 0: not said, which was softmax once


def expert_fields(reader: MetadataReader) -> dict[str, Any]:
    """Fields of a mixture of experts whose every layer has them.

    Source of the constants that no file holds: llama.cpp, `llm_build_qwen3moe`.
    """
    return {
        "num_experts": reader.require("expert_count", int),
        "num_experts_per_tok": reader.require("expert_used_count", int),
        "moe_intermediate_size": reader.require("expert_feed_forward_length", int),
        "norm_topk_prob": True,
    }


def shared_expert_fields(reader: MetadataReader) -> dict[str, Any]:
    """As `expert_fields`, with a gated network that every row goes through."""
    size = reader.require("expert_shared_feed_forward_length", int)
    return expert_fields(reader) | {"shared_expert_intermediate_size": size}


def grouped_expert_fields(reader: MetadataReader) -> dict[str, Any]:
    """Fields of DeepSeek's experts: groups, a bias, shared ones, dense layers in front.

    Raises:
        WeightsError: `expert_gating_func` is none that is known.
    """
    gating = reader.optional("expert_gating_func", 0, int)
    if gating not in _SCORINGS:
        raise WeightsError(
            f"the file has expert_gating_func = {gating}; known are 1 (softmax) and 2 (sigmoid)"
        )
    return {
        "first_k_dense_replace": reader.optional("leading_dense_block_count", 0, int),
        "moe_intermediate_size": reader.require("expert_feed_forward_length", int),
        "n_group": reader.optional("expert_group_count", 1, int),
        "n_routed_experts": reader.require("expert_count", int),
        "n_shared_experts": reader.optional("expert_shared_count", 0, int),
        "norm_topk_prob": reader.optional("expert_weights_norm", False, bool),
        "num_experts_per_tok": reader.require("expert_used_count", int),
        "routed_scaling_factor": reader.optional("expert_weights_scale", 1.0, float) or 1.0,
        "scoring_func": _SCORINGS[gating],
        "topk_group": reader.optional("expert_group_used_count", 1, int),
    }
