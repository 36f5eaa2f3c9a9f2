"""From GGUF tensor names to the public (Hugging Face) ones, and what the converter did to the data.

Source: llama.cpp, convert_hf_to_gguf.py and gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ROPE_FACTORS = "rope_freqs.weight"

_TOP: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_MOE_LAYER: Mapping[str, str] = {
    **_LAYER,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}

_GEMMA_LAYER: Mapping[str, str] = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_LAYERS: Mapping[str, Mapping[str, str]] = {"gemma3": _GEMMA_LAYER, "qwen3moe": _MOE_LAYER}

DRAFT_ARCHITECTURES = ("eagle3", "dflash")

_DRAFT_TOP: Mapping[str, str] = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "d2t": "d2t",
    "d2t.weight": "d2t",
}

_DRAFT_LAYER: Mapping[str, str] = {
    **_LAYER,
    "attn_norm_2": "hidden_norm",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}

_DRAFT_KERNEL: Mapping[str, str] = {"attn_conv_base": "attention_conv", "ffn_conv_base": "mlp_conv"}

# Buffers that some checkpoints carry and no model reads: they follow from the configuration.
HARMLESS_TENSORS: Mapping[str, str] = {
    r".*\.rotary_emb\.inv_freq": "rotary frequencies follow from rope_theta",
}


@dataclass(frozen=True, slots=True)
class Mapped:
    """Where a GGUF tensor goes.

    Attributes:
        name: The public name; the GGUF name itself where no mapping is known.
        permuted_heads: "query" or "key" if the converter interleaved the halves of each head's
            rows, for rotary embedding in neighbouring pairs.
        shift: What the converter added to every value.
    """

    name: str
    permuted_heads: str | None = None
    shift: float = 0.0


def map_gguf_name(name: str, architecture: str) -> Mapped:
    """Find the public name of a tensor of a GGUF file with this `general.architecture`."""
    if architecture in DRAFT_ARCHITECTURES:
        return _map_draft_name(name, architecture)
    if name in _TOP:
        return Mapped(_TOP[name], shift=_shift(name, architecture))
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    layer = _LAYERS.get(architecture, _LAYER)
    if match is None or match[2] not in layer:
        return Mapped(name)
    permuted = None
    if architecture == "llama":
        permuted = {"attn_q": "query", "attn_k": "key"}.get(match[2])
    return Mapped(
        f"model.layers.{match[1]}.{layer[match[2]]}.{match[3]}",
        permuted_heads=permuted,
        shift=_shift(name, architecture),
    )


def _map_draft_name(name: str, architecture: str) -> Mapped:
    """As `map_gguf_name`, for draft nets; their public names have no prefix."""
    if name in _DRAFT_TOP:
        return Mapped(_DRAFT_TOP[name])
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)(\.weight|\.bias|)", name)
    if match is None:
        return Mapped(name)
    prefix = f"layers.{match[1]}"
    if match[2] in _DRAFT_KERNEL:
        return Mapped(f"{prefix}.{_DRAFT_KERNEL[match[2]]}.base_kernel")
    if match[2] not in _DRAFT_LAYER:
        return Mapped(name)
    permuted = None
    if architecture == "eagle3":  # its converter is Llama's
        permuted = {"attn_q": "query", "attn_k": "key"}.get(match[2])
    return Mapped(f"{prefix}.{_DRAFT_LAYER[match[2]]}{match[3]}", permuted_heads=permuted)


def gguf_draft_name(name: str) -> str:
    """The name in a GGUF file of a draft net's parameter: `map_gguf_name` the other way round."""
    top = {public: stored for stored, public in _DRAFT_TOP.items() if stored != "d2t.weight"}
    match = re.fullmatch(r"layers\.(\d+)\.(.+?)(\.weight|\.bias|\.base_kernel)", name)
    if match is None:
        return top[name]
    is_kernel = match[3] == ".base_kernel"
    parts = {
        public: stored for stored, public in (_DRAFT_KERNEL if is_kernel else _DRAFT_LAYER).items()
    }
    return f"blk.{match[1]}.{parts[match[2]]}{'' if is_kernel else match[3]}"


def harmless_reason(name: str) -> str | None:
    """Why a tensor may be left unread, or None if it must be used."""
    for pattern, reason in HARMLESS_TENSORS.items():
        if re.fullmatch(pattern, name):
            return reason
    return None


def _shift(name: str, architecture: str) -> float:
    # Gemma's norms multiply by 1 + weight; llama.cpp stores the sum.
    return 1.0 if architecture == "gemma3" and name.endswith("norm.weight") else 0.0
