"""GGUF files of families with experts, latent attention or recurrent layers.

As llama.cpp converts them; written from what its converters do, not from what Slipstream reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from tests.support.gguf_files import add_metadata

Values = npt.NDArray[np.float32]
Named = Iterator[tuple[str, Values]]
Json = dict[str, Any]  # Any: JSON

ARCHITECTURES = {
    "deepseek_v3": "deepseek2",
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}

_NAMES: Mapping[str, str] = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_family_gguf(
    path: Path,
    checkpoint: Path,
    *,
    matrix_type: str = "F32",
    has_head: bool = False,
    is_old: bool = False,
    is_fused: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Convert a tiny checkpoint folder to one GGUF file.

    Args:
        matrix_type: Of matrices whose rows are whole blocks of it; others stay float32.
        has_head: Add a multi-token-prediction head behind the last layer.
        is_old: As earlier converters did: one matrix for both ways of latents, and recurrent
            inputs by key head.
        is_fused: Gates and rows into experts are one tensor.
        extra: Metadata, added or replacing.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    config = config | config.get("text_config", {})
    writer = gguf.GGUFWriter(path, architecture)
    metadata = _metadata(config, architecture, is_old=is_old)
    if has_head:
        metadata["block_count"] += 1
        metadata["nextn_predict_layers"] = 1
    for key, value in (metadata | dict(extra or {})).items():
        add_metadata(writer, f"{architecture}.{key}", value)
    writer.add_uint32("tokenizer.ggml.eos_token_id", config.get("eos_token_id", 2))
    tensors = {
        name.replace("model.language_model.", "model."): tensor.float()
        for name, tensor in load_file(checkpoint / "model.safetensors").items()
        if not name.startswith(("model.visual.", "mtp."))
    }
    parts = list(_converted(tensors, config, architecture, is_old=is_old))
    if is_fused:
        parts = list(_fused(dict(parts)))
    if has_head:
        parts += list(_head(parts, config["num_hidden_layers"]))
    for name, values in parts:
        _add_tensor(writer, name, values, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Json, architecture: str, *, is_old: bool) -> Json:
    made = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": 10000.0,
        "expert_count": config.get("num_experts", config.get("n_routed_experts")),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
    }
    special = _latent(config, is_old=is_old) if architecture == "deepseek2" else _hybrid(config)
    return {key: value for key, value in (made | special).items() if value is not None}


def _latent(config: Json, *, is_old: bool) -> Json:
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    key_dim, value_dim = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    lengths = {"attention.key_length": key_dim, "attention.value_length": value_dim}
    if not is_old:
        lengths = {
            "attention.key_length": rank + rope,
            "attention.value_length": rank,
            "attention.key_length_mla": key_dim,
            "attention.value_length_mla": value_dim,
        }
    scaling = config["rope_scaling"]
    return lengths | {
        "attention.head_count_kv": 1 if not is_old else config["num_attention_heads"],
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config["q_lora_rank"],
        "expert_gating_func": 2,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "rope.dimension_count": rope,
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.type": "yarn",
        "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"],
    }


def _hybrid(config: Json) -> Json:
    values = config["linear_num_value_heads"]
    return {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "full_attention_interval": config["full_attention_interval"],
        "rope.dimension_count": config["head_dim"] // 4,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.inner_size": values * config["linear_value_head_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.time_step_rank": values,
    }


def _converted(
    tensors: dict[str, torch.Tensor], config: Json, architecture: str, *, is_old: bool
) -> Named:
    is_hybrid = architecture != "deepseek2"
    for name, tensor in _stacked(tensors).items():
        values = tensor.numpy()
        if is_hybrid and name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + np.float32(1.0)
        if name in _TOP:
            yield _TOP[name], values
            continue
        _, _, layer, rest = name.split(".", 3)
        if int(layer) >= config["num_hidden_layers"]:
            continue
        for short, part in _parts(rest, values, config, architecture, is_old=is_old):
            yield f"blk.{layer}.{short}", np.ascontiguousarray(part)


def _parts(rest: str, values: Values, config: Json, architecture: str, *, is_old: bool) -> Named:
    """What becomes of one tensor of a layer."""
    if rest == "post_attention_layernorm.weight":
        is_hybrid = architecture != "deepseek2"
        yield ("post_attention_norm.weight" if is_hybrid else "ffn_norm.weight"), values
        return
    if rest == "self_attn.kv_b_proj.weight" and not is_old:
        by_head = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        nope = config["qk_nope_head_dim"]
        yield "attn_k_b.weight", by_head[:, :nope].swapaxes(1, 2)
        yield "attn_v_b.weight", by_head[:, nope:]
        return
    if rest == "linear_attn.in_proj_qkvz.weight" and not is_old:
        yield from _in_order(values, config)
        return
    if rest.startswith("linear_attn.") and architecture in ("qwen35", "qwen35moe"):
        values = _tiled(rest, values, config)
    if rest.startswith("mlp.shared_expert") and rest != "mlp.shared_expert_gate.weight":
        kind = rest.split(".")[-2].removesuffix("_proj")
        yield f"ffn_{kind}_shexp.weight", values
        return
    if rest == "linear_attn.A_log":
        values = -np.exp(values)
    if rest in ("linear_attn.conv1d.weight", "mlp.shared_expert_gate.weight"):
        values = values.squeeze()
    yield _NAMES[rest], values


def _in_order(values: Values, config: Json) -> Named:
    """Qwen3-Next's inputs of recurrent layers, from by key head to one kind after the other."""
    keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    width = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    by_head = values.reshape(keys, -1, values.shape[-1])
    cuts = np.cumsum([key_dim, key_dim, width])
    q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in np.split(by_head, cuts, axis=1))
    yield "attn_qkv.weight", np.concatenate([q, k, v])
    yield "attn_gate.weight", z


def _tiled(rest: str, values: Values, config: Json) -> Values:
    """Qwen3.5's value heads, from neighbours of one key head to turns of the key heads."""
    keys, num_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    num_others = 2 * keys * config["linear_key_head_dim"]

    def turn(x: Values) -> Values:
        heads = x.reshape(keys, num_values // keys, -1, *x.shape[1:])
        return heads.swapaxes(0, 1).reshape(x.shape)

    if rest in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return np.concatenate([values[:num_others], turn(values[num_others:])])
    if rest == "linear_attn.out_proj.weight":
        return turn(np.ascontiguousarray(values.T)).T
    if rest == "linear_attn.norm.weight":
        return values
    return turn(values)


def _fused(parts: dict[str, Values]) -> Named:
    """Gates above what they gate, for all experts of a layer."""
    for name, values in parts.items():
        if name.endswith("ffn_gate_exps.weight"):
            ups = parts[name.replace("gate", "up")]
            yield name.replace("gate", "gate_up"), np.concatenate([values, ups], axis=1)
        elif not name.endswith("ffn_up_exps.weight"):
            yield name, values


def _head(parts: list[tuple[str, Values]], num_layers: int) -> Named:
    """A head whose layer is a copy of the last."""
    rng = np.random.default_rng(5)
    prefix = f"blk.{num_layers - 1}."
    hidden = dict(parts)["output_norm.weight"].shape[0]
    for name, values in parts:
        if name.startswith(prefix):
            yield f"blk.{num_layers}.{name.removeprefix(prefix)}", values
    for name, shape in (
        ("eh_proj", (hidden, 2 * hidden)),
        ("enorm", (hidden,)),
        ("hnorm", (hidden,)),
        ("shared_head_norm", (hidden,)),
    ):
        values = rng.standard_normal(shape).astype(np.float32)
        yield f"blk.{num_layers}.nextn.{name}.weight", values


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One tensor for all experts of a layer."""
    made = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    for name in [name for name in tensors if ".mlp.experts.0." in name]:
        start, end = name.split(".experts.0.")
        count = sum(f"{start}.experts." in other and other.endswith(end) for other in tensors)
        parts = [tensors[f"{start}.experts.{expert}.{end}"] for expert in range(count)]
        made[f"{start}.experts.{end}"] = torch.stack(parts)
    return made


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Values, matrix_type: str) -> None:
    kind = gguf.GGMLQuantizationType[matrix_type]
    block_len = gguf.GGML_QUANT_SIZES[kind][0]
    stays = ("norm.weight", "ffn_gate_inp.weight", "conv1d.weight")
    is_plain = values.ndim == 1 or matrix_type == "F32" or name.endswith(stays)
    if is_plain or values.shape[-1] % block_len:
        writer.add_tensor(name, values)
    elif matrix_type == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    elif matrix_type == "BF16":
        stored = torch.from_numpy(values.copy()).bfloat16().view(torch.uint8).numpy()
        writer.add_tensor(name, stored, raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
