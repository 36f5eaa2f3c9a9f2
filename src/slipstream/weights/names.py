"""From GGUF tensor names to the public (Hugging Face) ones, and what the converter did to the data.

Source: llama.cpp, convert_hf_to_gguf.py and gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.weights.gguf_layers import (
    HEADS_BEHIND,
    HEADS_BESIDE,
    HYBRID_ARCHITECTURES,
    LATENT_ARCHITECTURE,
    LAYERS,
    PLAIN_LAYER,
    WHOLE_NAMES,
)

ROPE_FACTORS = "rope_freqs.weight"

_TOP: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

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
    **PLAIN_LAYER,
    "attn_norm_2": "hidden_norm",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}

_DRAFT_KERNEL: Mapping[str, str] = {"attn_conv_base": "attention_conv", "ffn_conv_base": "mlp_conv"}

_DROPPED_AXES: Mapping[str, int] = {"ssm_conv1d": 1, "ffn_gate_inp_shexp": 0}

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
        is_negative_exp: The converter stored -exp of every value.
        dropped_axis: An axis of one that the converter dropped, where it did.
    """

    name: str
    permuted_heads: str | None = None
    shift: float = 0.0
    is_negative_exp: bool = False
    dropped_axis: int | None = None


def map_gguf_name(name: str, architecture: str, num_layers: int | None = None) -> Mapped:
    """Find the public name of a tensor of a GGUF file with this `general.architecture`.

    Args:
        num_layers: Of the decoder; layers behind are heads. None: there are no heads.
    """
    if architecture in DRAFT_ARCHITECTURES:
        return _map_draft_name(name, architecture)
    if name in _TOP:
        return Mapped(_TOP[name], shift=_shift(name, architecture))
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if match is None:
        return Mapped(name)
    index, rest = int(match[1]), match[2]
    is_head = num_layers is not None and index >= num_layers
    if is_head and architecture != LATENT_ARCHITECTURE:
        prefix = f"mtp.layers.{index - (num_layers or 0)}"
    else:
        prefix = f"model.layers.{index}"
    if is_head and rest.startswith("nextn."):
        return _map_head_name(name, rest, prefix, architecture)
    if rest in WHOLE_NAMES:
        return Mapped(f"{prefix}.{WHOLE_NAMES[rest]}", is_negative_exp=rest == "ssm_a")
    part, _, kind = rest.rpartition(".")
    layer = LAYERS.get(architecture, PLAIN_LAYER)
    if part not in layer or kind not in ("weight", "bias"):
        return Mapped(name)
    permuted = None
    if architecture == "llama":
        permuted = {"attn_q": "query", "attn_k": "key"}.get(part)
    return Mapped(
        f"{prefix}.{layer[part]}.{kind}",
        permuted_heads=permuted,
        shift=_shift(name, architecture),
        dropped_axis=_DROPPED_AXES.get(part),
    )


def _map_head_name(name: str, rest: str, prefix: str, architecture: str) -> Mapped:
    """As `map_gguf_name`, for what a multi-token-prediction head has besides its layer."""
    part, _, kind = rest.rpartition(".")
    is_beside = architecture != LATENT_ARCHITECTURE
    names = HEADS_BESIDE if is_beside else HEADS_BEHIND
    if part not in names:
        return Mapped(name)
    prefix = "mtp" if is_beside else prefix
    return Mapped(f"{prefix}.{names[part]}.{kind}", shift=_shift(name, architecture))


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


def gguf_head_name(name: str, num_layers: int) -> str:
    """The same for a multi-token-prediction head's parameter, in a file of its own.

    Args:
        name: Behind `mtp.`.
        num_layers: Of the decoder that it is for; the head's layer is the one behind.
    """
    layer, _, kind = name.removeprefix("layers.0.").rpartition(".")
    known = PLAIN_LAYER if name.startswith("layers.0.") else HEADS_BESIDE
    stored = {public: part for part, public in known.items()}
    return f"blk.{num_layers}.{stored[layer]}.{kind}"


def harmless_reason(name: str) -> str | None:
    """Why a tensor may be left unread, or None if it must be used."""
    for pattern, reason in HARMLESS_TENSORS.items():
        if re.fullmatch(pattern, name):
            return reason
    return None


def _shift(name: str, architecture: str) -> float:
    # Zero-centred norms multiply by 1 + weight; llama.cpp stores the sum.
    has_zero_centred = architecture in ("gemma3", *HYBRID_ARCHITECTURES)
    is_centred = name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")
    return 1.0 if has_zero_centred and is_centred else 0.0
