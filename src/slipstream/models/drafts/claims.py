"""What a draft checkpoint's fields claim of a net, and no net here can have otherwise. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader

EMBEDDINGS, HEAD = "embed_tokens.weight", "lm_head.weight"
QUERY_NORM = "layers.0.self_attn.q_norm.weight"

# What ModelOpt, vLLM and SGLang may say of a net, and the value that the nets here have.
_SWITCHES: Mapping[str, bool | int] = {
    "mlp_bias": False,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
}

_TOLD_BY_TENSORS: Mapping[str, str] = {
    "use_qk_norm": QUERY_NORM,
    "has_embed_tokens": EMBEDDINGS,
    "has_lm_head": HEAD,
}


def require_claims(config: ConfigReader, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a net that switches something else on, or contradicts its tensors.

    Raises:
        WeightsError: Names the field.
    """
    for name, value in _SWITCHES.items():
        config.require(name, value)
    for name, tensor in _TOLD_BY_TENSORS.items():
        is_there = tensor in shapes
        if config.flag(name, is_there) != is_there:
            raise WeightsError(
                f"config.json has {name} = {str(not is_there).lower()}, but there is "
                f"{'a' if is_there else 'no'} tensor {tensor}",
                hint="the weights do not fit the configuration, or a shard is missing",
            )
