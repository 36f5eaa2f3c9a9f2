"""What GGUF files call the tensors of a decoder layer, by architecture.

Source: llama.cpp, gguf-py/gguf/constants.py, tensor_mapping.py and the converters.
"""

from __future__ import annotations

from collections.abc import Mapping

PLAIN_LAYER: Mapping[str, str] = {
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

_EXPERTS: Mapping[str, str] = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}

_GEMMA_LAYER: Mapping[str, str] = {
    **PLAIN_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_LATENT_LAYER: Mapping[str, str] = {
    **PLAIN_LAYER,
    **_EXPERTS,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}

_HYBRID_LAYER: Mapping[str, str] = {
    **PLAIN_LAYER,
    **_EXPERTS,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}

HYBRID_ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")
LATENT_ARCHITECTURE = "deepseek2"

LAYERS: Mapping[str, Mapping[str, str]] = {
    "gemma3": _GEMMA_LAYER,
    "qwen3moe": {**PLAIN_LAYER, **_EXPERTS},
    LATENT_ARCHITECTURE: _LATENT_LAYER,
    **dict.fromkeys(HYBRID_ARCHITECTURES, _HYBRID_LAYER),
}
"""Without the suffix `.weight` or `.bias`, which stays. Other architectures have plain layers."""

WHOLE_NAMES: Mapping[str, str] = {
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
}
"""Names whose suffix changes as well."""

HEADS_BEHIND: Mapping[str, str] = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_norm": "shared_head.norm",
    "nextn.shared_head_head": "shared_head.head",
}
"""Of a head in DeepSeek's layout, a layer behind the decoder's last."""

HEADS_BESIDE: Mapping[str, str] = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_norm": "norm",
    "nextn.shared_head_head": "lm_head",
}
"""Of a head in Qwen's layout, under `mtp.`."""
