"""Trained draft nets as GGUF files, in llama.cpp's layout, quantised if wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.models.drafts.hparams import (
    DFlash2Hparams,
    DFlashHparams,
    DraftHparams,
    DSparkHparams,
    Eagle3Hparams,
)
from slipstream.models.hparams import Hparams
from slipstream.weights.names import gguf_draft_name, gguf_head_name

GgufType = Literal["f32", "bf16", "q8_0", "q4_1", "q4_0"]
Array = npt.NDArray[np.float32]

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
_BLOCK = 32  # values of a quantised block
_FUSION = "fc.weight"
_HEAD_ARCHITECTURE = "llama"  # whose layer it has


def write_draft_gguf(
    path: Path,
    hparams: DraftHparams,
    parameters: Mapping[str, Tensor],
    token_ids: Tensor | None,
    kind: GgufType,
    vocabulary: Mapping[str, Any],  # Any: values of GGUF's types
) -> None:
    """Write one file.

    Args:
        vocabulary: The target's, see `vocabulary_keys`.
        token_ids: [draft_vocab] int64 target id of each of the draft's tokens; None if it knows
            all.
        kind: How matrices are stored; what is no matrix, or has rows that no blocks divide, stays
            float32. `fc` is never stored in less than bfloat16: its columns differ as much as the
            channels of the taps do, so that one scale for a block would lose the small ones.
    Raises:
        ConfigError: The layout cannot express the net.
    """
    if isinstance(hparams, DSparkHparams) and hparams.markov_kind not in (None, "vanilla"):
        raise ConfigError(
            f"GGUF has no Markov head of kind {hparams.markov_kind}, only vanilla",
            hint="export it with --layout slipstream",
        )
    if isinstance(hparams, DSparkHparams) and hparams.markov_kind is None:
        raise ConfigError(
            "a dspark net without a Markov head cannot be told from dflash in GGUF",
            hint="export it with --layout slipstream",
        )
    if isinstance(hparams, Eagle3Hparams) and hparams.recycles_normed:
        raise ConfigError(
            "GGUF has no eagle3 net whose chained rows read behind the final norm",
            hint="export it with --layout slipstream",
        )
    is_eagle = isinstance(hparams, Eagle3Hparams)
    architecture = "eagle3" if is_eagle else "dflash"
    writer = gguf.GGUFWriter(path, architecture)
    _write_keys(writer, architecture, hparams)
    stored = {name: gguf_draft_name(name) for name in parameters}
    _write(_Content(writer, hparams, parameters, token_ids, vocabulary), stored, kind)


def write_head_gguf(
    path: Path,
    hparams: DraftHparams,
    parameters: Mapping[str, Tensor],
    token_ids: Tensor | None,
    kind: GgufType,
    vocabulary: Mapping[str, Any],  # Any: values of GGUF's types
    num_target_layers: int,
) -> None:
    """The same for a multi-token-prediction head: the layer behind a decoder that is not there.

    Args:
        parameters: By their names with `mtp.` in front.
    """
    writer = gguf.GGUFWriter(path, _HEAD_ARCHITECTURE)
    writer.add_uint32(f"{_HEAD_ARCHITECTURE}.nextn_predict_layers", 1)
    _write_body(writer, _HEAD_ARCHITECTURE, hparams.body, num_target_layers + 1)
    own = {name.removeprefix("mtp."): tensor for name, tensor in parameters.items()}
    stored = {name: gguf_head_name(name, num_target_layers) for name in own}
    _write(_Content(writer, hparams, own, token_ids, vocabulary), stored, kind)


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file gets besides the keys of its kind, which are written."""

    writer: gguf.GGUFWriter
    hparams: DraftHparams
    parameters: Mapping[str, Tensor]
    token_ids: Tensor | None
    vocabulary: Mapping[str, Any]  # Any: values of GGUF's types


def _write(content: _Content, stored: Mapping[str, str], kind: GgufType) -> None:
    """Args:
    stored: What each parameter is called in the file.
    """
    writer = content.writer
    for key, value in content.vocabulary.items():
        _write_key(writer, key, value)
    for name, tensor in content.parameters.items():
        values = tensor.detach().float().numpy()
        if isinstance(content.hparams, Eagle3Hparams):  # Llama's layer
            values = _interleaved(name, values, content.hparams)
        is_coarse = name == _FUSION and kind != "f32"
        _add(writer, stored[name], values, "bf16" if is_coarse else kind)
    if content.token_ids is not None:
        writer.add_tensor("d2t", content.token_ids.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_key(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """One value under the type that llama.cpp's own converter gives to such values."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list() if value:
            writer.add_array(key, value)


def _write_body(writer: gguf.GGUFWriter, architecture: str, body: Hparams, num_layers: int) -> None:
    counts = {
        "block_count": num_layers,
        "context_length": body.max_positions,
        "embedding_length": body.hidden_size,
        "feed_forward_length": body.intermediate_size,
        "attention.head_count": body.num_heads,
        "attention.head_count_kv": body.kv_heads,
        "attention.key_length": body.head_dim,
        "attention.value_length": body.head_dim,
        "vocab_size": body.vocab_size,
    }
    for key, count in counts.items():
        writer.add_uint32(f"{architecture}.{key}", count)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", body.norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", body.layers[0].rotary.theta)


def _write_keys(writer: gguf.GGUFWriter, architecture: str, hparams: DraftHparams) -> None:
    _write_body(writer, architecture, hparams.body, hparams.body.num_layers)
    counts = {"target_hidden_size": hparams.target_hidden_size}
    if isinstance(hparams, Eagle3Hparams):
        writer.add_bool(f"{architecture}.norm_before_residual", hparams.has_normed_residual)
        writer.add_bool(f"{architecture}.norm_before_fc", hparams.has_input_norm)
    if isinstance(hparams, DSparkHparams):
        writer.add_bool(f"{architecture}.has_confidence_head", hparams.has_confidence)
    if isinstance(hparams, DFlashHparams):
        counts["block_size"] = hparams.draft_block_len
        writer.add_bool(f"{architecture}.sample_from_anchor", hparams.first_draft_row == 0)
        writer.add_bool(f"{architecture}.attention.causal", any(hparams.causal_layers))
        writer.add_uint32("tokenizer.ggml.mask_token_id", hparams.mask_token_id)
    if isinstance(hparams, DFlash2Hparams):
        counts |= {
            "conv_kernel_size": hparams.conv_kernel_len,
            "conv_group_size": hparams.conv_group_size,
            "selector_rank": hparams.selector_rank,
            "selector_top_k": hparams.selector_top_k,
        }
    for key, count in counts.items():
        writer.add_uint32(f"{architecture}.{key}", count)
    outputs = [layer + 1 for layer in hparams.tap_layer_ids or ()]
    writer.add_array(f"{architecture}.target_layers", outputs)


def _add(writer: gguf.GGUFWriter, name: str, values: Array, kind: GgufType) -> None:
    is_matrix = values.ndim == 2 and values.shape[1] % _BLOCK == 0
    if kind == "f32" or not is_matrix:
        writer.add_tensor(name, np.ascontiguousarray(values))
        return
    stored = quantize(values, _TYPES[kind])
    writer.add_tensor(name, stored, raw_dtype=_TYPES[kind])


def _interleaved(name: str, values: Array, hparams: DraftHparams) -> Array:
    """Rows of queries and keys with the two halves of each head taking turns, as Llama's are."""
    match = re.search(r"self_attn\.([qk])_proj", name)
    if match is None:
        return values
    heads = hparams.body.num_heads if match[1] == "q" else hparams.body.kv_heads
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
