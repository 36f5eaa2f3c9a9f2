"""DeepSeek-V3 and models of its layout: latent attention, experts in groups, YaRN."""

from __future__ import annotations

import math
from dataclasses import replace

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family, read_decoder, read_rotary, yarn_scale
from slipstream.models.hparams import Hparams, LatentParams, LayerParams, MoeParams

_NO_PART_OF_A_PASS = (  # of training, of a head behind the last layer, or derived
    "ep_size", "seq_aux", "aux_loss_alpha", "num_nextn_predict_layers", "qk_head_dim",
)  # fmt: skip


def read_deepseek_v3(config: ConfigReader) -> Hparams:
    """Read a DeepSeek-V3 config.json."""
    config.require("attention_bias", False)
    for name in _NO_PART_OF_A_PASS:
        config.ignore(name)
    latent = LatentParams(
        query_rank=config.count("q_lora_rank") if config.has("q_lora_rank") else None,
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
        is_interleaved=config.flag("rope_interleave", True),
    )
    rotary = read_rotary(config)
    moe = _read_experts(config)
    num_dense = config.integer("first_k_dense_replace", 0)
    layers = tuple(
        LayerParams(None, rotary, moe if index >= num_dense else None)
        for index in range(config.count("num_hidden_layers"))
    )
    return replace(
        read_decoder(config, "deepseek_v3", layers),
        kv_heads=1,
        head_dim=latent.kv_rank + latent.rope_dim,
        attention_scale=_attention_scale(config, latent),
        latent=latent,
    )


def _read_experts(config: ConfigReader) -> MoeParams:
    config.require("scoring_func", "sigmoid")
    config.require("topk_method", "noaux_tc")
    config.require("moe_layer_freq", 1)
    num_experts, num_groups = config.count("n_routed_experts"), config.count("n_group", 1)
    num_chosen_groups = config.count("topk_group", 1)
    num_chosen = config.count("num_experts_per_tok")
    most = num_chosen_groups * (num_experts // num_groups)
    if num_experts % num_groups or num_chosen_groups > num_groups or num_chosen > most:
        raise WeightsError(
            f"config.json chooses num_experts_per_tok = {num_chosen} of n_routed_experts = "
            f"{num_experts} in topk_group = {num_chosen_groups} of n_group = {num_groups} groups; "
            "groups must be equal, and those chosen must hold enough experts"
        )
    size = config.count("moe_intermediate_size")
    return MoeParams(
        num_experts=num_experts,
        num_chosen=num_chosen,
        expert_size=size,
        shared_size=config.integer("n_shared_experts", 0) * size,
        scoring="sigmoid",
        has_bias=True,
        num_groups=num_groups,
        num_chosen_groups=num_chosen_groups,
        normalises=config.flag("norm_topk_prob", True),
        weight_scale=config.positive("routed_scaling_factor", 1.0),
    )


def _attention_scale(config: ConfigReader, latent: LatentParams) -> float:
    """YaRN's factor on queries and on keys stands here where it is for all of a head."""
    scale = 1.0 / math.sqrt(latent.nope_dim + latent.rope_dim)
    for name in ("rope_parameters", "rope_scaling"):
        section = config.section(name)
        if section is not None and (all_dim := section.number("mscale_all_dim", 0.0)):
            return scale * yarn_scale(section.positive("factor"), all_dim) ** 2
    return scale


FAMILY = Family("deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3)
