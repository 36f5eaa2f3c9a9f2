"""From a checkpoint to a decoder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slipstream.attention import native
from slipstream.errors import ConfigError, WeightsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import Activations, PackedMatrix
from slipstream.kernels.serving import head_obstacle, torch_between
from slipstream.models import (
    deepseek_v3,
    gemma3,
    llama,
    mistral,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
)
from slipstream.models.config_reader import ConfigReader
from slipstream.models.decoder import Decoder, DecoderParts, Model, attention_shape
from slipstream.models.family import Family
from slipstream.models.hparams import Hparams
from slipstream.models.layer_reader import LayerReader
from slipstream.models.layers.embedding import Embedding, PackedEmbedding, TableEmbedding
from slipstream.models.layers.linear import NativeLinear
from slipstream.models.native_decoder import NativeDecoder
from slipstream.models.weight_reader import Products, WeightReader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.fp8_blocks import block_shape_of
from slipstream.weights.parts import special_parts, unserved_reason

log = logging.getLogger("slipstream.models")

_FAMILIES = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    qwen3_next.FAMILY,
    *qwen3_5.FAMILIES,
    deepseek_v3.FAMILY,
    gemma3.FAMILY,
)


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    *,
    kernels: KernelLibrary | None = None,
    activations: Activations = "bfloat16",
) -> Model:
    """Read a checkpoint into a decoder that computes in `dtype`.

    Args:
        dtype: float32 or bfloat16.
        kernels: Where given, a bfloat16 model runs in native kernels, and weights in blocks of a
            format that they multiply stay as stored.
        activations: How rows enter products with such blocks.
    Raises:
        WeightsError: If the family or a field of its configuration is not supported, or tensors
            are missing, left over or of the wrong shape.
        NumericsError: If this machine cannot multiply exactly.
        ConfigError: If nothing could take 8-bit activations.
    """
    hparams = read_hparams(checkpoint.config)
    usable = _usable(kernels, hparams, dtype)
    if activations == "int8" and usable is None:
        raise _no_int8("the native kernels, which take them, do not compute this model here")
    reader = WeightReader(checkpoint, Products(dtype, usable, activations))
    layer_reader = LayerReader(reader, hparams)
    layers = [layer_reader.layer(index) for index in range(hparams.num_layers)]
    vocabulary = (hparams.vocab_size, hparams.hidden_size)
    table = reader.weight(f"{hparams.weights_prefix}.embed_tokens.weight", *vocabulary)
    # Public files of models with tied embeddings sometimes hold the same matrix twice.
    has_head = reader.has("lm_head.weight")
    stored_head = reader.weight("lm_head.weight", *vocabulary) if has_head else None
    if stored_head is None and not hparams.has_tied_embeddings:
        raise WeightsError(
            f"{checkpoint.path} has no lm_head.weight, but its config.json does not tie it to the "
            "embeddings (tie_word_embeddings is false)"
        )
    is_tied = hparams.has_tied_embeddings or stored_head is None
    head = reader.linear_of([table if is_tied or stored_head is None else stored_head])
    final_norm = layer_reader.norm(f"{hparams.weights_prefix}.norm", hparams.hidden_size)
    _skip_what_is_not_served(checkpoint)
    checkpoint.finish()
    reader.warn_of_widened()
    if activations == "int8" and not reader.num_in_blocks:
        raise _no_int8("no matrix of the model is stored in Q8_0, Q4_0 or Q4_1")
    scale = hparams.embedding_scale
    embedding: Embedding
    if reader.kernels is not None:
        assert isinstance(head, NativeLinear)
        matrix = head.matrix if is_tied else PackedMatrix(reader.kernels, [table])
        if hparams.is_plain:
            return NativeDecoder(hparams, matrix, layers, final_norm, head, reader.kernels)
        log.info("native kernels multiply; %s", torch_between(special_parts(checkpoint.config)))
        embedding = PackedEmbedding(matrix, scale, is_heads=is_tied)
    else:
        assert isinstance(table, Tensor)
        embedding = TableEmbedding(table.to(dtype), scale)
    parts = DecoderParts(embedding, layers, final_norm, head)
    return Decoder(hparams, dtype, parts, reader.proofs(), reader.kernels)


def _skip_what_is_not_served(checkpoint: Checkpoint) -> None:
    """Leave other parts of a public file unread, and say so."""
    counts: Counter[str] = Counter()
    for name in checkpoint.names():
        if (reason := unserved_reason(name, checkpoint.config)) is not None:
            checkpoint.skip(name, reason)
            counts[reason] += 1
    for reason, count in counts.items():
        log.info("%d tensors are not read: %s", count, reason)


def _no_int8(reason: str) -> ConfigError:
    return ConfigError(
        f"activations are to be int8, but {reason}",
        hint='set activations to "auto"; `slipstream models show` says how a model is multiplied',
    )


def _usable(
    kernels: KernelLibrary | None, hparams: Hparams, dtype: torch.dtype
) -> KernelLibrary | None:
    """The kernels, if they can compute this model."""
    if kernels is None or dtype != torch.bfloat16:
        return None
    if hparams.is_plain and not native.fits(attention_shape(hparams)):
        log.warning(
            "torch computes this model, exactly but several times slower: %s",
            head_obstacle(hparams.head_dim),
        )
        return None
    return kernels


def read_hparams(config: Mapping[str, Any]) -> Hparams:  # any JSON
    """Hyperparameters of a config.json.

    Raises:
        WeightsError: If the family, a field or a value of it is not supported.
    """
    reader = ConfigReader(config)
    hparams = _family(config).read(reader)
    if block_shape_of(config) is not None:
        reader.ignore("quantization_config")  # undone where tensors are read
    reader.finish()
    return hparams


def is_supported(config: Mapping[str, Any]) -> bool:  # any JSON
    """Whether the content of a config.json names a family that `load_model` reads."""
    return _find_family(config) is not None


def _family(config: Mapping[str, Any]) -> Family:  # any JSON
    family = _find_family(config)
    if family is not None:
        return family
    model_type = config.get("model_type")
    architectures = config.get("architectures") or []
    supported = ", ".join(f"{family.model_type} ({family.architecture})" for family in _FAMILIES)
    raise WeightsError(
        f"config.json has model_type {model_type!r} and architectures {architectures!r}, which "
        f"are not supported; supported are {supported}"
    )


def _find_family(config: Mapping[str, Any]) -> Family | None:  # any JSON
    model_type = config.get("model_type")
    architectures = config.get("architectures") or []
    for family in _FAMILIES:
        if model_type == family.model_type and (
            not architectures or family.architecture in architectures
        ):
            return family
    return None
