"""Tiny draft nets in GGUF files, as llama.cpp's converter would write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tests.support.drafts import CONFIGS, TAPS, VOCAB_SIZE, tiny_tensors_of

_NAMES = {
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
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
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}


def write_draft_gguf(path: Path, family: str) -> Path:
    """The net of `tiny_tensors_of(CONFIGS[family])` in one file."""
    config = {**CONFIGS[family], **CONFIGS[family].get("dflash_config", {})}
    architecture = "eagle3" if family == "eagle3" else "dflash"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _counts(config).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_array(
        f"{architecture}.target_layers",
        [2, 4, 5] if family == "eagle3" else [layer + 1 for layer in TAPS],
    )
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_token_list([f"t{index}" for index in range(VOCAB_SIZE)])
    if family == "dspark":
        writer.add_bool(f"{architecture}.sample_from_anchor", True)
    if family != "eagle3":
        writer.add_uint32("tokenizer.ggml.mask_token_id", config["mask_token_id"])
    for name, tensor in tiny_tensors_of(CONFIGS[family]).items():
        if name == "d2t":
            writer.add_tensor("d2t", (tensor + torch.arange(len(tensor))).numpy())
        elif name != "t2d":
            values = tensor.numpy()
            if architecture == "eagle3":
                values = _permuted(name, values, config)
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _counts(config: dict[str, Any]) -> dict[str, int]:
    names = ("block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        **{name: config[name] for name in names if name in config},
    }


def _gguf_name(name: str) -> str:
    name = name.replace("midlayer.", "layers.0.")
    if name in _NAMES or not name.startswith("layers."):
        return _NAMES.get(name, name)
    _, layer, rest = name.split(".", 2)
    if rest.endswith(".base_kernel"):
        return f"blk.{layer}.{'attn' if rest.startswith('attention') else 'ffn'}_conv_base"
    short, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[short]}.{kind}"


def _permuted(
    name: str, values: npt.NDArray[np.float32], config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    match = re.search(r"self_attn\.([qk])_proj", name)
    if match is None:
        return values
    heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
