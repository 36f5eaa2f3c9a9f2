"""Tiny random checkpoints of families with experts, latent attention or recurrent layers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.tiny import BOS_ID, EOS_ID, write_tiny_tokenizer

VOCAB_SIZE = 320
HIDDEN = 32
NUM_LAYERS = 3
NUM_HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
NUM_EXPERTS, NUM_CHOSEN, EXPERT_SIZE = 6, 2, 16

Json = dict[str, Any]  # Any: JSON
Shapes = Iterator[tuple[str, tuple[int, ...]]]

_COMMON: Json = {
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "num_attention_heads": NUM_HEADS,
    "num_hidden_layers": NUM_LAYERS,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB_SIZE,
}

_QWEN_EXPERTS: Json = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": EXPERT_SIZE,
    "norm_topk_prob": True,
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": NUM_CHOSEN,
}

_HYBRID: Json = {
    "full_attention_interval": 3,
    "head_dim": HEAD_DIM,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "num_key_value_heads": KV_HEADS,
}


def _without(config: Json, *names: str) -> Json:
    return {name: value for name, value in config.items() if name not in names}


def _multimodal(architecture: str, model_type: str, text: Json) -> Json:
    rope = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "eos_token_id": EOS_ID,
        "image_token_id": 300,
        "text_config": text
        | {
            "model_type": f"{model_type}_text",
            "rope_parameters": rope | {"mrope_section": [1, 1, 0], "mrope_interleaved": True},
        },
        "tie_word_embeddings": False,
        "vision_config": {"depth": 1},
    }


CONFIGS: Mapping[str, Json] = {
    "qwen3_moe": _COMMON
    | _QWEN_EXPERTS
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": HEAD_DIM,
        "mlp_only_layers": [1],
        "num_key_value_heads": KV_HEADS,
        "rope_theta": 10000.0,
        "use_sliding_window": False,
    },
    "deepseek_v3": _COMMON
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "kv_lora_rank": 24,
        "moe_intermediate_size": EXPERT_SIZE,
        "n_group": 3,
        "n_routed_experts": NUM_EXPERTS,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": NUM_CHOSEN,
        "num_key_value_heads": NUM_HEADS,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 20,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "rope_scaling": {
            "type": "yarn",
            "factor": 8.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 64,
        },
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "v_head_dim": 12,
    },
    "qwen3_next": _COMMON
    | _QWEN_EXPERTS
    | _HYBRID
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_5": _multimodal(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        _COMMON | _HYBRID | {"mtp_num_hidden_layers": 1},
    ),
    "qwen3_5_moe": _multimodal(
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        _without(_COMMON, "intermediate_size")
        | _without(_QWEN_EXPERTS, "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
        | _HYBRID
        | {"shared_expert_intermediate_size": 24},
    ),
}


def write_tiny_family(
    path: Path, family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:  # changes: fields of config.json, of any JSON type
    """Write a checkpoint of one of `CONFIGS` to `path`, with a tokenizer; returns `path`."""
    config = CONFIGS[family] | changes
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(seed * 1009 + len(family))
    tensors = {
        name: _draw(name, shape, generator).to(dtype) for name, shape in tensor_shapes(config)
    }
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    write_tiny_tokenizer(path, VOCAB_SIZE)
    return path


def tensor_shapes(config: Json) -> Shapes:
    """Names and shapes of all tensors, as public files of the family have them."""
    start = "model"
    if "text_config" in config:
        config, start = config["text_config"], "model.language_model"
        yield "model.visual.blocks.0.norm1.weight", (8,)
        yield "mtp.norm.weight", (HIDDEN,)
    yield f"{start}.embed_tokens.weight", (VOCAB_SIZE, HIDDEN)
    yield f"{start}.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB_SIZE, HIDDEN)
    for index in range(NUM_LAYERS + config.get("num_nextn_predict_layers", 0)):
        prefix = f"{start}.layers.{index}"
        yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)
        interval = config.get("full_attention_interval", 1)
        if (index + 1) % interval:
            yield from _delta(f"{prefix}.linear_attn", config, is_split=start != "model")
        else:
            mixer = _latent if "kv_lora_rank" in config else _heads
            yield from mixer(f"{prefix}.self_attn", config)
        yield from _mlp(f"{prefix}.mlp", index, config)
    yield from _heads_behind(start, config)


def _heads_behind(start: str, config: Json) -> Shapes:
    """Multi-token-prediction heads, but for what is drawn above."""
    first, count = NUM_LAYERS, config.get("num_nextn_predict_layers", 0)
    for prefix in (f"{start}.layers.{index}" for index in range(first, first + count)):
        yield f"{prefix}.embed_tokens.weight", (VOCAB_SIZE, HIDDEN)
        yield f"{prefix}.enorm.weight", (HIDDEN,)
        yield f"{prefix}.hnorm.weight", (HIDDEN,)
        yield f"{prefix}.eh_proj.weight", (HIDDEN, 2 * HIDDEN)
        yield f"{prefix}.shared_head.norm.weight", (HIDDEN,)
        yield f"{prefix}.shared_head.head.weight", (VOCAB_SIZE, HIDDEN)
    if "linear_num_value_heads" in config:
        yield from qwen_head(config, has_norm=start != "model")


def qwen_head(config: Json, *, has_norm: bool = False) -> Shapes:
    """A head under `mtp.` with the layer of such a decoder.

    Args:
        has_norm: Its final norm is drawn elsewhere.
    """
    if not has_norm:
        yield "mtp.norm.weight", (HIDDEN,)
    yield "mtp.fc.weight", (HIDDEN, 2 * HIDDEN)
    yield "mtp.pre_fc_norm_embedding.weight", (HIDDEN,)
    yield "mtp.pre_fc_norm_hidden.weight", (HIDDEN,)
    yield "mtp.layers.0.input_layernorm.weight", (HIDDEN,)
    yield "mtp.layers.0.post_attention_layernorm.weight", (HIDDEN,)
    yield from _heads("mtp.layers.0.self_attn", config)
    yield from _mlp("mtp.layers.0.mlp", NUM_LAYERS, config)


def _delta(prefix: str, config: Json, *, is_split: bool) -> Shapes:
    heads = config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    channels = 2 * keys + values
    yield f"{prefix}.A_log", (heads,)
    yield f"{prefix}.dt_bias", (heads,)
    yield f"{prefix}.norm.weight", (config["linear_value_head_dim"],)
    yield f"{prefix}.conv1d.weight", (channels, 1, config["linear_conv_kernel_dim"])
    yield f"{prefix}.out_proj.weight", (HIDDEN, values)
    if is_split:
        yield f"{prefix}.in_proj_qkv.weight", (channels, HIDDEN)
        yield f"{prefix}.in_proj_z.weight", (values, HIDDEN)
        yield f"{prefix}.in_proj_b.weight", (heads, HIDDEN)
        yield f"{prefix}.in_proj_a.weight", (heads, HIDDEN)
    else:
        yield f"{prefix}.in_proj_qkvz.weight", (channels + values, HIDDEN)
        yield f"{prefix}.in_proj_ba.weight", (2 * heads, HIDDEN)


def _heads(prefix: str, config: Json) -> Shapes:
    num_queries = NUM_HEADS * (2 if "linear_num_value_heads" in config else 1)  # and their gates
    for name, size in (("q", num_queries), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{prefix}.{name}_proj.weight", (size * HEAD_DIM, HIDDEN)
    yield f"{prefix}.o_proj.weight", (HIDDEN, NUM_HEADS * HEAD_DIM)
    yield f"{prefix}.q_norm.weight", (HEAD_DIM,)
    yield f"{prefix}.k_norm.weight", (HEAD_DIM,)


def _latent(prefix: str, config: Json) -> Shapes:
    nope, rope, value = (
        config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    kv_rank, query_rank = config["kv_lora_rank"], config["q_lora_rank"]
    query_size = NUM_HEADS * (nope + rope)
    if query_rank is None:
        yield f"{prefix}.q_proj.weight", (query_size, HIDDEN)
    else:
        yield f"{prefix}.q_a_proj.weight", (query_rank, HIDDEN)
        yield f"{prefix}.q_a_layernorm.weight", (query_rank,)
        yield f"{prefix}.q_b_proj.weight", (query_size, query_rank)
    yield f"{prefix}.kv_a_proj_with_mqa.weight", (kv_rank + rope, HIDDEN)
    yield f"{prefix}.kv_a_layernorm.weight", (kv_rank,)
    yield f"{prefix}.kv_b_proj.weight", (NUM_HEADS * (nope + value), kv_rank)
    yield f"{prefix}.o_proj.weight", (HIDDEN, NUM_HEADS * value)


def _mlp(prefix: str, index: int, config: Json) -> Shapes:
    is_dense = index in config.get("mlp_only_layers", [])
    is_dense |= index < config.get("first_k_dense_replace", 0)
    if is_dense or "moe_intermediate_size" not in config:
        yield from _gated(prefix, config["intermediate_size"])
        return
    yield f"{prefix}.gate.weight", (NUM_EXPERTS, HIDDEN)
    if "scoring_func" in config:
        yield f"{prefix}.gate.e_score_correction_bias", (NUM_EXPERTS,)
        shared = config["moe_intermediate_size"] * config["n_shared_experts"]
        yield from _gated(f"{prefix}.shared_experts", shared)
    if "shared_expert_intermediate_size" in config:
        yield from _gated(f"{prefix}.shared_expert", config["shared_expert_intermediate_size"])
        yield f"{prefix}.shared_expert_gate.weight", (1, HIDDEN)
    for expert in range(NUM_EXPERTS):
        yield from _gated(f"{prefix}.experts.{expert}", config["moe_intermediate_size"])


def _gated(prefix: str, size: int) -> Shapes:
    yield f"{prefix}.gate_proj.weight", (size, HIDDEN)
    yield f"{prefix}.up_proj.weight", (size, HIDDEN)
    yield f"{prefix}.down_proj.weight", (HIDDEN, size)


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values that give logits of a standard deviation near 2 and biases that matter."""
    values = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return values * 0.25 + (1.0 if name.endswith("norm.weight") else 0.0)
    return values * (0.3 if "embed" in name else 1.7 / math.sqrt(shape[-1]))
