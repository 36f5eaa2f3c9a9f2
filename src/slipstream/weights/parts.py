"""Parts of a model that are not those of a plain decoder, told from its configuration. No torch."""

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
