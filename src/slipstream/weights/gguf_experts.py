"""What config.json says of experts, from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from slipstream.weights.gguf_metadata import MetadataReader

EXPERT_ARCHITECTURES = ("qwen3moe",)


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
