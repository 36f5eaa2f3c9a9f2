"""A config.json for a GGUF file, from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import WeightsError
from slipstream.weights.gguf_drafts import draft_fields
from slipstream.weights.gguf_experts import EXPERT_ARCHITECTURES, expert_fields
from slipstream.weights.gguf_hybrid import (
    hybrid_fields,
    latent_fields,
    latent_scaling,
    num_head_layers,
)
from slipstream.weights.gguf_layers import HYBRID_ARCHITECTURES, LATENT_ARCHITECTURE
from slipstream.weights.gguf_metadata import MetadataReader, shortest
from slipstream.weights.gguf_reader import GgufFile
from slipstream.weights.names import DRAFT_ARCHITECTURES, ROPE_FACTORS

# general.architecture -> (model_type, architectures[0])
_FAMILIES: Mapping[str, tuple[str, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "qwen3next": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen35": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "deepseek2": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "eagle3": ("llama", "LlamaForCausalLMEagle3"),
    "dflash": ("qwen3", "DFlashDraftModel"),
}

# What llama.cpp holds as constants of the architecture instead of writing it to the file.
_GEMMA_PATTERN = 6
_GEMMA_LOCAL_ROPE_THETA = 10000.0
_GEMMA_27B_LAYERS = 62
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


def architecture_of(file: GgufFile) -> str:
    """`general.architecture`, if it is one that can be read.

    Raises:
        WeightsError: it is absent or not supported.
    """
    architecture = MetadataReader(file).require("general.architecture", str)
    if architecture not in _FAMILIES:
        raise WeightsError(
            f"{file.path} holds a model of architecture {architecture!r}; "
            f"supported in GGUF are {', '.join(_FAMILIES)}"
        )
    return architecture


def config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """Build what config.json would say, with the field names of public checkpoints.

    Raises:
        WeightsError: a key is missing or of the wrong type, or the model needs what the config
            cannot express (experts, layers of different sizes, unknown rotary scaling).
    """
    architecture = architecture_of(file)
    reader = MetadataReader(file, architecture)
    if reader.optional("expert_count", 0, int) and architecture not in EXPERT_ARCHITECTURES:
        raise WeightsError(
            f"{file.path} is a mixture of experts of architecture {architecture!r}; in GGUF these "
            f"are supported of {', '.join(EXPERT_ARCHITECTURES)}"
        )
    model_type, class_name = _FAMILIES[architecture]
    hidden_size = reader.require("embedding_length", int)
    num_heads = reader.same_in_every_layer("attention.head_count")
    expert_size = reader.optional("expert_feed_forward_length", 0, int)
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": hidden_size,
        "intermediate_size": reader.same_in_every_layer("feed_forward_length", expert_size or None),
        "num_hidden_layers": reader.require("block_count", int) - num_head_layers(reader),
        "num_attention_heads": num_heads,
        "num_key_value_heads": reader.same_in_every_layer("attention.head_count_kv", num_heads),
        "max_position_embeddings": reader.require("context_length", int),
        "rms_norm_eps": shortest(reader.require("attention.layer_norm_rms_epsilon", float)),
        "rope_theta": shortest(reader.optional("rope.freq_base", 10000.0, float)),
        "vocab_size": _vocab_size(file, reader, architecture),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_token_ids(file.metadata),
    }
    if architecture == LATENT_ARCHITECTURE:
        config["rope_scaling"] = latent_scaling(reader, _rope_scaling(file, reader, 0))
        return config | {"hidden_act": "silu"} | latent_fields(reader)
    config |= _head_fields(file, reader, hidden_size // num_heads)
    if architecture in DRAFT_ARCHITECTURES:
        return config | draft_fields(file, reader)
    if architecture in HYBRID_ARCHITECTURES:
        return config | {"hidden_act": "silu"} | hybrid_fields(reader, model_type)
    return config | _family_fields(file, reader, config) | _prediction_fields(file, reader)


def _prediction_fields(file: GgufFile, reader: MetadataReader) -> dict[str, Any]:
    """Of multi-token-prediction heads, in the names of a file that holds nothing else."""
    if not num_head_layers(reader):
        return {}
    fields = {"mtp_num_hidden_layers": num_head_layers(reader)}
    if "d2t" in file.tensors:
        fields["draft_vocab_size"] = file.tensors["d2t"].shape[0]
    return fields


def _head_fields(file: GgufFile, reader: MetadataReader, head_dim: int) -> dict[str, Any]:
    """Of heads whose keys and values are of one length.

    Args:
        head_dim: What it is where the file does not say.
    """
    head_dim = reader.optional("attention.key_length", head_dim, int)
    if reader.optional("attention.value_length", head_dim, int) != head_dim:
        raise WeightsError(f"{file.path} has keys and values of different lengths: not supported")
    fields: dict[str, Any] = {"head_dim": head_dim}
    fields["rope_scaling"] = _rope_scaling(file, reader, head_dim)
    rotary_dim = reader.optional("rope.dimension_count", head_dim, int)
    if rotary_dim != head_dim:
        fields["partial_rotary_factor"] = rotary_dim / head_dim
    return fields


def _vocab_size(file: GgufFile, reader: MetadataReader, architecture: str) -> int:
    """Rows of the embedding; a draft net that has none says so itself, or by its tokenizer."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    if architecture in DRAFT_ARCHITECTURES or num_head_layers(reader):
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and tokens:
            return len(tokens)
        count = file.metadata.get(f"{architecture}.vocab_size")
        if isinstance(count, int) and count > 0:
            return count
    raise WeightsError(f"{file.path} has no tensor 'token_embd.weight', the token embedding")


def _family_fields(
    file: GgufFile, reader: MetadataReader, config: dict[str, Any]
) -> dict[str, Any]:
    window = reader.optional("attention.sliding_window", 0, int)
    model_type = config["model_type"]
    if model_type == "gemma3_text":
        is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS
        scalar = config["hidden_size"] // config["num_attention_heads"]
        local_theta = reader.optional("rope.freq_base_swa", _GEMMA_LOCAL_ROPE_THETA, float)
        softcap = reader.optional("final_logit_softcapping", 0.0, float)
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "query_pre_attn_scalar": scalar if is_27b else config["head_dim"],
            "rope_local_base_freq": shortest(local_theta),
            "sliding_window": reader.require("attention.sliding_window", int),
            "sliding_window_pattern": reader.optional(
                "attention.sliding_window_pattern", _GEMMA_PATTERN, int
            ),
            "final_logit_softcapping": softcap or None,
            "attn_logit_softcapping": None,
        }
    fields: dict[str, Any] = {"hidden_act": "silu"}
    if model_type == "llama" and window:
        # GGUF has no architecture of Mistral's own: a Llama with a window is one.
        fields |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        fields["sliding_window"] = window
    elif model_type == "llama":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        fields["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    else:
        fields |= {"sliding_window": window or None, "use_sliding_window": window > 0}
    if config["model_type"] == "qwen3_moe":
        fields |= expert_fields(reader)
    return fields


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    pad = metadata.get("tokenizer.ggml.padding_token_id")
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    unique = list(dict.fromkeys(end for end in ends if end is not None))
    eos = unique[0] if len(unique) == 1 else unique or None
    return {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}


def _rope_scaling(file: GgufFile, reader: MetadataReader, head_dim: int) -> dict[str, Any] | None:
    if ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file, reader, head_dim)
    kind = reader.optional("rope.scaling.type", "none", str)
    factor = shortest(reader.optional("rope.scaling.factor", 1.0, float))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = reader.require("rope.scaling.original_context_length", int)
        scaling = {"rope_type": "yarn", "factor": factor}
        for name in ("beta_fast", "beta_slow"):
            if beta := reader.optional(f"rope.scaling.yarn_{name}", 0.0, float):
                scaling[name] = shortest(beta)
        return scaling | {"original_max_position_embeddings": original}
    raise WeightsError(
        f"{file.path} scales its rotary embedding by {kind!r}; supported are linear, yarn and "
        f"the factors of Llama 3 ({ROPE_FACTORS})"
    )


def _llama3_scaling(file: GgufFile, reader: MetadataReader, head_dim: int) -> dict[str, Any] | None:
    """Recognise Llama 3's scaling in `rope_freqs.weight`, the divisors of the frequencies.

    The file has the divisors alone; they are accepted if the published rule reproduces them.
    """
    tensor = file.tensors[ROPE_FACTORS]
    stored = tensor.block.dequantize(file.blocks(ROPE_FACTORS)).ravel()
    factor = float(stored.max())
    if float(stored.min()) == 1.0 == factor:
        return None
    theta = reader.optional("rope.freq_base", 10000.0, float)
    context = reader.optional("rope.scaling.original_context_length", _LLAMA3_CONTEXT, int)
    expected = llama3_factors(theta, head_dim, factor, context)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
        raise WeightsError(
            f"{ROPE_FACTORS} of {file.path} does not follow Llama 3's rule (factor {factor:g}, "
            f"original context {context}); other rotary factors are not supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": context,
    }


def llama3_factors(
    theta: float, head_dim: int, factor: float, original_context: int
) -> npt.NDArray[np.float64]:
    """Divisors of the rotary frequencies by Llama 3's rule: [head_dim / 2].

    Source: transformers, modeling_rope_utils.py, `_compute_llama3_parameters`.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (original_context / wavelengths - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    blend = np.clip(smooth, 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1.0 / ((1.0 - blend) / factor + blend)
    return divisors
