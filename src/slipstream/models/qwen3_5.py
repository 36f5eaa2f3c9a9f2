"""Qwen3.5 and later of its layout, dense or with experts.

The text part of multimodal files, whose configuration is nested; and text alone, where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.family import Family
from slipstream.models.hparams import Hparams
from slipstream.models.qwen3_moe import with_experts
from slipstream.models.qwen3_next import read_hybrid, read_shared_experts

_OF_IMAGES = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id",
)  # fmt: skip


def read_qwen3_5(config: ConfigReader) -> Hparams:
    """Read a dense Qwen3.5 config.json."""
    return _read_text(config, _dense)


def read_qwen3_5_moe(config: ConfigReader) -> Hparams:
    """Read the config.json of a Qwen3.5 with experts."""
    return _read_text(config, _with_experts)


def read_qwen3_5_text(config: ConfigReader) -> Hparams:
    """Read a dense Qwen3.5 config.json without a vision part."""
    return _without_heads(config, _dense(config))


def read_qwen3_5_moe_text(config: ConfigReader) -> Hparams:
    """Read the config.json of a Qwen3.5 with experts and without a vision part."""
    return _without_heads(config, _with_experts(config))


def _dense(text: ConfigReader) -> Hparams:
    return read_hybrid(text, "qwen3_5", is_interleaved=False)


def _with_experts(text: ConfigReader) -> Hparams:
    text.require("norm_topk_prob", True)
    moe = read_shared_experts(text, normalises=True)
    # Every layer has experts, so its files do not say how wide a dense MLP would be.
    hparams = read_hybrid(
        text, "qwen3_5_moe", is_interleaved=False, intermediate_size=moe.expert_size
    )
    return replace(hparams, layers=with_experts(text, hparams.layers, moe))


def _read_text(config: ConfigReader, read: Callable[[ConfigReader], Hparams]) -> Hparams:
    text = config.section("text_config")
    if text is None:
        raise WeightsError("config.json lacks text_config, the part that is served")
    for name in _OF_IMAGES:
        config.ignore(name)
    hparams = _without_heads(text, read(text))
    text.finish()
    ties = config.flag("tie_word_embeddings", hparams.has_tied_embeddings)
    return replace(hparams, has_tied_embeddings=ties, weights_prefix="model.language_model")


def _without_heads(text: ConfigReader, hparams: Hparams) -> Hparams:
    text.ignore("mtp_num_hidden_layers")  # of a head under mtp.*, no layer of the decoder
    text.ignore("mtp_use_dedicated_embeddings")
    return hparams


FAMILIES = (
    Family("qwen3_5", "Qwen3_5ForConditionalGeneration", read_qwen3_5),
    Family("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", read_qwen3_5_moe),
    Family("qwen3_5_text", "Qwen3_5ForCausalLM", read_qwen3_5_text),
    Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen3_5_moe_text),
)
