"""From a draft checkpoint's fields to hyperparameters. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.drafts.claims import EMBEDDINGS, HEAD, QUERY_NORM, require_claims
from slipstream.models.drafts.hparams import (
    DFlash2Hparams,
    DFlashHparams,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
    MarkovKind,
)
from slipstream.models.drafts.layouts import DraftLayout, read_draft_layout
from slipstream.models.family import read_decoder, read_layers, read_rotary
from slipstream.models.hparams import Hparams, LayerParams
from slipstream.models.qwen2 import DEFAULT_FIRST_SLIDING

_EAGLE_THETA = 10000.0  # the reference's, where config.json has none; never the target's
_BLOCK_THETA = 1000000.0
_EAGLE_TAPS = 3
MATRIX_AXES = 2
_MARKOV_KINDS: Mapping[str, MarkovKind] = {"vanilla": "vanilla", "gated": "gated", "rnn": "rnn"}
_BODIES = ("llama", "qwen3")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """What a draft checkpoint is, told from its headers.

    Attributes:
        layout: Whose layout, and the names of its tensors.
        hparams: The net's; taps in this package's convention.
        num_target_layers: Depth of the target it was made for, where the checkpoint says.
        problems: Tensors that are missing, left over or of the wrong shape, in words, where these
            were looked at.
    """

    layout: DraftLayout
    hparams: DraftHparams
    num_target_layers: int | None
    problems: tuple[str, ...] = ()


def describe_draft(
    config: Mapping[str, Any],  # Any: JSON
    shapes: Shapes,
    *,
    is_gguf: bool = False,
) -> DraftCheckpoint | None:
    """Read the headers of a draft checkpoint; None for a checkpoint that is no drafter.

    Raises:
        WeightsError: It is one that cannot be used; the message says why.
    """
    layout = read_draft_layout(config, shapes, is_gguf=is_gguf)
    if layout is None:
        return None
    of_names = {name: shapes[stored] for name, stored in layout.names.items()}
    reader = ConfigReader(layout.config)
    model_type = reader.text("model_type", "llama")
    if model_type not in _BODIES:
        raise WeightsError(
            f"the drafter's layers are of model_type {model_type!r}; supported are "
            f"{', '.join(_BODIES)}"
        )
    is_eagle = layout.family == "eagle3"
    common = _read_common(reader, of_names, is_eagle=is_eagle)
    hparams: DraftHparams
    if is_eagle:
        hparams = _read_eagle3(reader, common)
    else:
        block = _read_block(reader, common, is_anchor_first=layout.family == "dspark")
        hparams = block
        if layout.family == "dflash2":
            hparams = _read_dflash2(reader, block)
        elif layout.family == "dspark":
            hparams = _read_dspark(reader, block)
    depth = reader.count("num_target_layers") if reader.has("num_target_layers") else None
    reader.finish()
    return DraftCheckpoint(layout, hparams, depth)


def _read_common(config: ConfigReader, shapes: Shapes, *, is_eagle: bool) -> DraftHparams:
    window = config.count("sliding_window") if config.has("sliding_window") else None
    slides = config.flag("use_sliding_window", False)
    config.integer("sliding_window", 0)
    first_sliding = config.integer("max_window_layers", DEFAULT_FIRST_SLIDING)
    rotary = read_rotary(config, _EAGLE_THETA if is_eagle else _BLOCK_THETA)
    full, sliding = LayerParams(None, rotary), LayerParams(window, rotary)
    layers = read_layers(
        config,
        full,
        sliding,
        lambda layer: slides and window is not None and layer >= first_sliding,
    )
    has_bias = config.flag("attention_bias", False)
    require_claims(config, shapes)
    body = replace(
        read_decoder(config, "draft", layers),
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_qk_norm=QUERY_NORM in shapes,
        has_tied_embeddings=False,  # a draft has its own ends or the target's
    )
    tap_layer_ids = config.integers("target_layer_ids")
    target_hidden, num_taps = _tap_sizes(config, body, shapes, tap_layer_ids, is_eagle=is_eagle)
    return DraftHparams(
        body=body,
        target_hidden_size=target_hidden,
        num_taps=num_taps,
        tap_layer_ids=tap_layer_ids,
        draft_vocab_size=_draft_vocab_size(config, body, shapes),
        has_own_embeddings=EMBEDDINGS in shapes,
        has_own_head=HEAD in shapes,
    )


def _tap_sizes(
    config: ConfigReader,
    body: Hparams,
    shapes: Shapes,
    tap_layer_ids: tuple[int, ...] | None,
    *,
    is_eagle: bool,
) -> tuple[int, int]:
    """Width of a tap and number of taps, from what `fc` reads."""
    if len(shapes["fc.weight"]) != MATRIX_AXES:
        raise WeightsError(
            f"tensor fc.weight has shape {list(shapes['fc.weight'])}; it must be a matrix",
            hint="the weights do not fit the configuration; export the drafter again",
        )
    width = shapes["fc.weight"][-1]
    default = body.hidden_size
    if tap_layer_ids:
        default = width // len(tap_layer_ids)
    elif is_eagle:
        default = width // _EAGLE_TAPS
    size = config.count("target_hidden_size", max(default, 1))
    num_taps = len(tap_layer_ids) if tap_layer_ids is not None else width // size
    if num_taps < 1 or num_taps * size != width:
        given = "no list of taps" if tap_layer_ids is None else f"taps {list(tap_layer_ids)}"
        raise WeightsError(
            f"fc.weight reads {width} values, but config.json has {given} of {size} values each",
            hint="target_layer_ids and target_hidden_size must be those of the training",
        )
    if is_eagle and tap_layer_ids is None and num_taps != _EAGLE_TAPS:
        raise WeightsError(
            f"fc.weight reads {num_taps} states of {size} values, and config.json does not say of "
            f"which layers; the layers of {_EAGLE_TAPS} states follow from the target's depth",
            hint="name them in eagle_aux_hidden_state_layer_ids, as in the training",
        )
    config.require("num_aux_hidden_states", num_taps)
    return size, num_taps


def _draft_vocab_size(config: ConfigReader, body: Hparams, shapes: Shapes) -> int:
    size = config.count("draft_vocab_size", body.vocab_size)
    if size > body.vocab_size:
        raise WeightsError(
            f"config.json has draft_vocab_size = {size}, more than vocab_size = {body.vocab_size}"
        )
    if size < body.vocab_size and not {"d2t", HEAD} <= shapes.keys():
        raise WeightsError(
            f"the drafter knows {size} of {body.vocab_size} tokens, which takes the tensors d2t "
            "and lm_head.weight; it lacks " + " and ".join(sorted({"d2t", HEAD} - shapes.keys()))
        )
    return size


def _read_eagle3(config: ConfigReader, common: DraftHparams) -> Eagle3Hparams:
    if any(layer.window is not None for layer in common.body.layers):
        raise WeightsError("an EAGLE-3 drafter with sliding windows is not supported")
    config.require("fc_norm", False)
    return Eagle3Hparams(
        **_fields(common),
        has_normed_residual=config.flag("norm_before_residual", False),
        has_input_norm=config.flag("norm_before_fc", False),
        recycles_normed=config.flag("norm_output", False),
    )


def _read_block(
    config: ConfigReader, common: DraftHparams, *, is_anchor_first: bool
) -> DFlashHparams:
    config.require("projector_type", "dspark" if is_anchor_first else "dflash")
    config.require("attention_sink_bias", False)
    config.require("attention_value_scale", 1.0)
    config.require("is_neox_style", True)
    common = replace(common, body=_with_window_of_all(config, common.body))
    length = config.count("block_size")
    first_row = 0 if config.flag("sample_from_anchor", is_anchor_first) else 1
    mask = config.integer("mask_token_id")
    if length <= first_row or not 0 <= mask < common.body.vocab_size:
        raise WeightsError(
            f"config.json has block_size = {length} and mask_token_id = {mask}; a block needs a "
            f"draft row and the mask a token below vocab_size = {common.body.vocab_size}"
        )
    is_sliding_causal = config.flag("is_sliding_causal", True)
    of_section = config.flag("causal", False)
    causal = config.flag("is_causal", of_section)
    if config.has("causal") and causal != of_section:
        raise WeightsError(
            f"config.json has is_causal = {str(causal).lower()} and, in dflash_config, causal = "
            f"{str(of_section).lower()}",
            hint="remove the field that is not the training's; slipstream doctor measures each",
        )
    is_said = config.has("is_causal") or config.has("causal")
    windows = [layer.window for layer in common.body.layers]
    if any(window is not None and window < length for window in windows):
        raise WeightsError(
            f"config.json has sliding_window = {min(filter(None, windows))}, less than a block of "
            f"{length} rows, which is not supported"
        )
    return DFlashHparams(
        **_fields(common),
        draft_block_len=length,
        mask_token_id=mask,
        first_draft_row=first_row,
        causal_layers=tuple(
            causal if is_said else window is not None and is_sliding_causal for window in windows
        ),
        logit_scale=config.positive("output_multiplier", 1.0),
        logit_cap=(
            config.positive("final_logit_softcapping")
            if config.has("final_logit_softcapping")
            else None
        ),
        embedding_scale=config.positive("input_embedding_scale", 1.0),
    )


def _with_window_of_all(config: ConfigReader, body: Hparams) -> Hparams:
    """`use_swa` gives every layer the window `swa_window_size`."""
    if not config.flag("use_swa", False):
        config.integer("swa_window_size", 0)
        return body
    window = config.count("swa_window_size")
    return replace(body, layers=tuple(replace(layer, window=window) for layer in body.layers))


def _read_dflash2(config: ConfigReader, block: DFlashHparams) -> DFlash2Hparams:
    group = config.count("conv_group_size", 16)
    if block.body.hidden_size % group:
        raise WeightsError(
            f"config.json has conv_group_size = {group}, which does not divide hidden_size = "
            f"{block.body.hidden_size}"
        )
    return DFlash2Hparams(
        **_fields(block),
        conv_kernel_len=config.count("conv_kernel_size", 2),
        conv_group_size=group,
        selector_rank=config.count("selector_rank", 256),
        selector_top_k=config.count("selector_top_k", 16),
    )


def _read_dspark(config: ConfigReader, block: DFlashHparams) -> DSparkHparams:
    rank = config.integer("markov_rank", 0)
    kind = config.text("markov_head_type", "vanilla")
    if rank < 0 or kind not in _MARKOV_KINDS:
        raise WeightsError(
            f"config.json has markov_rank = {rank} and markov_head_type = {kind!r}; the rank must "
            f"be at least 0 and the type one of {', '.join(_MARKOV_KINDS)}"
        )
    has_confidence = config.flag("enable_confidence_head", False)
    reads_markov = config.flag("confidence_head_with_markov", False)
    if has_confidence and reads_markov and not rank:
        raise WeightsError(
            "config.json has confidence_head_with_markov = true but markov_rank = 0: there is no "
            "Markov head to read"
        )
    return DSparkHparams(
        **_fields(block),
        markov_kind=_MARKOV_KINDS[kind] if rank else None,
        markov_rank=rank,
        has_confidence=has_confidence,
        confidence_reads_markov=has_confidence and reads_markov,
    )


def _fields(hparams: DraftHparams) -> dict[str, Any]:  # Any: values of different types
    return {field.name: getattr(hparams, field.name) for field in fields(hparams)}
