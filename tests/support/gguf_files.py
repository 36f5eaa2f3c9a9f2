"""GGUF files for tests, written with the `gguf` package as llama.cpp's converter would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_tiny_gguf(
    path: Path,
    checkpoint: Path,
    *,
    matrix_type: str = "F32",
    extra: dict[str, Any] | None = None,
    rope_factors: npt.NDArray[np.float32] | None = None,
) -> Path:
    """Convert a tiny checkpoint folder to one GGUF file.

    Args:
        matrix_type: Storage of all matrices: "F32", "F16", "BF16", "Q8_0" or "Q4_1"; vectors stay
            float32.
        extra: Metadata, by full key, added or replacing: str, int or float values.
        rope_factors: Content of `rope_freqs.weight`.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    metadata = _metadata(config, architecture) | (extra or {})
    for key, value in metadata.items():
        add_metadata(writer, key, value)
    tensors = _with_stacked_experts(load_file(checkpoint / "model.safetensors"), config)
    for name, tensor in tensors.items():
        values = _converted(name, tensor.float().numpy(), config, architecture)
        _add_tensor(writer, _gguf_name(name, architecture), values, matrix_type)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _with_stacked_experts(
    tensors: dict[str, torch.Tensor], config: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """One tensor for all experts of a layer, as llama.cpp's converter makes."""
    made = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"] if "num_experts" in config else 0):
        prefix = f"model.layers.{layer}.mlp.experts"
        for kind in ("gate_proj", "up_proj", "down_proj"):
            experts = range(config["num_experts"])
            parts = [tensors[f"{prefix}.{expert}.{kind}.weight"] for expert in experts]
            made[f"{prefix}.{kind}.weight"] = torch.stack(parts)
    return made


def _metadata(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": config["head_dim"],
        f"{architecture}.attention.value_length": config["head_dim"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    if config.get("sliding_window"):
        metadata[f"{architecture}.attention.sliding_window"] = config["sliding_window"]
    if "num_experts" in config:
        metadata[f"{architecture}.expert_count"] = config["num_experts"]
        metadata[f"{architecture}.expert_used_count"] = config["num_experts_per_tok"]
        metadata[f"{architecture}.expert_feed_forward_length"] = config["moe_intermediate_size"]
    if architecture == "gemma3":
        key = f"{architecture}.attention.sliding_window_pattern"
        metadata[key] = config["sliding_window_pattern"]
    return metadata


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:  # Any: of JSON's kinds
    """Add a value as the type that files have for it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


def _gguf_name(name: str, architecture: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    short, _, kind = rest.rpartition(".")
    table = _GGUF_NAMES | (_GEMMA_NAMES if architecture == "gemma3" else {})
    return f"blk.{layer}.{table[short]}.{kind}"


def _converted(
    name: str, values: npt.NDArray[np.float32], config: dict[str, Any], architecture: str
) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter does to the values of this architecture."""
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }.get(name.split(".")[-2])
    if architecture != "llama" or heads is None:
        return values
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32], matrix_type: str
) -> None:
    if values.ndim == 1 or matrix_type == "F32":
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[matrix_type]
    if matrix_type == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    elif matrix_type == "BF16":
        stored = torch.from_numpy(values).bfloat16().view(torch.uint8).numpy()
        writer.add_tensor(name, stored, raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
