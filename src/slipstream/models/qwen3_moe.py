"""Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family
from slipstream.models.hparams import Hparams, LayerParams, MoeParams
from slipstream.models.qwen3 import read_qwen3


def read_qwen3_moe(config: ConfigReader) -> Hparams:
    """Read a Qwen3-MoE config.json: Qwen3, with experts in most layers."""
    moe = read_softmax_experts(config, normalises=config.flag("norm_topk_prob", False))
    hparams = replace(read_qwen3(config), family="qwen3_moe")
    return replace(hparams, layers=with_experts(config, hparams.layers, moe))


def read_softmax_experts(config: ConfigReader, *, normalises: bool) -> MoeParams:
    """The fields of experts that Qwen's families share."""
    config.number("router_aux_loss_coef", 0.0)  # of training
    config.flag("output_router_logits", False)
    num_experts = config.count("num_experts")
    num_chosen = config.count("num_experts_per_tok")
    if num_chosen > num_experts:
        raise WeightsError(
            f"config.json has num_experts_per_tok = {num_chosen} of num_experts = {num_experts}"
        )
    return MoeParams(
        num_experts=num_experts,
        num_chosen=num_chosen,
        expert_size=config.count("moe_intermediate_size"),
        normalises=normalises,
    )


def with_experts(
    config: ConfigReader, layers: tuple[LayerParams, ...], moe: MoeParams
) -> tuple[LayerParams, ...]:
    """Layers with `moe` where `decoder_sparse_step` and `mlp_only_layers` ask for experts."""
    step = config.count("decoder_sparse_step", 1)
    dense: Collection[int] = config.integers("mlp_only_layers") or ()
    return tuple(
        layer if index in dense or (index + 1) % step else replace(layer, moe=moe)
        for index, layer in enumerate(layers)
    )


FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe)
