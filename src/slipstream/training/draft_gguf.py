"""Trained draft nets as GGUF files, in llama.cpp's layout, quantised if wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from torch import Tensor

from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.hparams import Hparams
from slipstream.training.families.family import FUSION, GgufValue
from slipstream.training.families.table import family_for

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
    family = family_for(hparams)
    own = family.gguf_keys(hparams)
    writer = gguf.GGUFWriter(path, family.gguf_architecture)
    for key, value in (_body_keys(family.gguf_architecture, hparams.body) | own).items():
        _write_key(writer, key, value)
    for key, value in vocabulary.items():
        _write_key(writer, key, value)
    for name, tensor in parameters.items():
        values = tensor.detach().float().numpy()
        if family.has_paired_rotary:
            values = _interleaved(name, values, hparams)
        is_coarse = name.endswith(FUSION) and kind != "f32"
        _add(writer, family.gguf_name(name, hparams), values, "bf16" if is_coarse else kind)
    if token_ids is not None:
        writer.add_tensor("d2t", token_ids.numpy())
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:  # the disk may be full
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


def _body_keys(architecture: str, body: Hparams) -> dict[str, GgufValue]:
    keys: dict[str, GgufValue] = {
        "block_count": body.num_layers,
        "context_length": body.max_positions,
        "embedding_length": body.hidden_size,
        "feed_forward_length": body.intermediate_size,
        "attention.head_count": body.num_heads,
        "attention.head_count_kv": body.kv_heads,
        "attention.key_length": body.head_dim,
        "attention.value_length": body.head_dim,
        "vocab_size": body.vocab_size,
        "attention.layer_norm_rms_epsilon": float(body.norm_eps),
        "rope.freq_base": float(body.layers[0].rotary.theta),
    }
    return {f"{architecture}.{key}": value for key, value in keys.items()}


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
