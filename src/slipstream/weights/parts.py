"""Parts of a checkpoint that are not those of a plain decoder, told from its headers. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS: Mapping[str, str] = {
    "num_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts",
    "kv_lora_rank": "latent attention",
    "linear_num_value_heads": "recurrent layers",
}


def special_parts(config: Mapping[str, Any]) -> tuple[str, ...]:  # any JSON
    """Names of such parts, each once; empty for a plain decoder.

    Args:
        config: A config.json, that of a multimodal model included.
    """
    text = {**config, **(config.get("text_config") or {})}
    return tuple(dict.fromkeys(name for field, name in _PARTS.items() if text.get(field)))


def unserved_reason(name: str, config: Mapping[str, Any]) -> str | None:  # any JSON
    """Why a tensor belongs to a part that a decoder of text does not have; None if it does not.

    Args:
        name: Public name of a tensor.
        config: The checkpoint's config.json.
    """
    if name.startswith("model.visual."):
        return "the vision tower: only text is served"
    first, count = config.get("num_hidden_layers", 0), config.get("num_nextn_predict_layers") or 0
    heads = ("mtp.", *(f"model.layers.{index}." for index in range(first, first + count)))
    if name.startswith(heads):
        return "a multi-token-prediction head: no part of the target itself"
    return None
