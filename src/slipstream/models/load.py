"""From a checkpoint to a decoder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slipstream.attention import native
from slipstream.errors import ConfigError, WeightsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import Activations, PackedMatrix, StoredWeight, can_hold
from slipstream.kernels.serving import head_obstacle
from slipstream.models import gemma3, llama, mistral, qwen2, qwen3
from slipstream.models.config_reader import ConfigReader
from slipstream.models.decoder import Decoder, DecoderLayer, Model, attention_shape
from slipstream.models.family import Family
from slipstream.models.hparams import Hparams
from slipstream.models.layers.activation import gated_activation
from slipstream.models.layers.linear import Linear, LinearFactory, NativeLinear
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.native_decoder import NativeDecoder
from slipstream.weights.checkpoint import Checkpoint

log = logging.getLogger("slipstream.models")

_FAMILIES = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY)


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
    reader = _WeightReader(checkpoint, hparams, dtype, usable, activations)
    layers = [reader.layer(index) for index in range(hparams.num_layers)]
    vocabulary = (hparams.vocab_size, hparams.hidden_size)
    table = reader.weight("model.embed_tokens.weight", *vocabulary)
    # Public files of models with tied embeddings sometimes hold the same matrix twice.
    stored_head = reader.optional("lm_head.weight", *vocabulary)
    if stored_head is None and not hparams.has_tied_embeddings:
        raise WeightsError(
            f"{checkpoint.path} has no lm_head.weight, but its config.json does not tie it to the "
            "embeddings (tie_word_embeddings is false)"
        )
    is_tied = hparams.has_tied_embeddings or stored_head is None
    head = reader.linear_of([table if is_tied or stored_head is None else stored_head])
    final_norm = reader.norm("model.norm", hparams.hidden_size)
    checkpoint.finish()
    reader.warn_of_widened()
    if activations == "int8" and not reader.num_in_blocks:
        raise _no_int8("no matrix of the model is stored in Q8_0, Q4_0 or Q4_1")
    if reader.kernels is not None:
        assert isinstance(head, NativeLinear)
        embeddings = head.matrix if is_tied else PackedMatrix(reader.kernels, [table])
        return NativeDecoder(hparams, embeddings, layers, final_norm, head, reader.kernels)
    assert isinstance(table, Tensor)
    table = table.to(dtype)
    if hparams.embedding_scale is not None:
        table = table * torch.tensor(hparams.embedding_scale, dtype=dtype)
    activation = gated_activation(hparams.activation, dtype)
    return Decoder(hparams, table, layers, final_norm, head, activation, reader.factory)


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
    if not native.fits(attention_shape(hparams)):
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
    reader.require("quantization_config", None)
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


class _WeightReader:
    """Takes tensors under their public names and checks their shapes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        hparams: Hparams,
        dtype: torch.dtype,
        kernels: KernelLibrary | None,
        activations: Activations,
    ) -> None:
        self.factory = LinearFactory(dtype)
        self.kernels = kernels
        self.num_in_blocks = 0
        self._activations = activations
        self._checkpoint = checkpoint
        self._hparams = hparams
        self._widened: Counter[str] = Counter()

    def layer(self, index: int) -> DecoderLayer:
        """One layer; projections that read the same input become one matrix."""
        hparams, prefix = self._hparams, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        hidden, q_size, kv_size = hparams.hidden_size, hparams.q_size, hparams.kv_size
        sandwich = hparams.has_sandwich_norms
        mlp_norm = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        return DecoderLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm", hidden),
            qkv=self._linear(
                {
                    f"{attention}.q_proj": q_size,
                    f"{attention}.k_proj": kv_size,
                    f"{attention}.v_proj": kv_size,
                },
                hidden,
                has_bias=hparams.qkv_bias,
            ),
            q_norm=self._head_norm(f"{attention}.q_norm"),
            k_norm=self._head_norm(f"{attention}.k_norm"),
            attention_output=self._linear(
                {f"{attention}.o_proj": hidden}, q_size, has_bias=hparams.output_bias
            ),
            attention_output_norm=self.norm(f"{prefix}.post_attention_layernorm", hidden)
            if sandwich
            else None,
            mlp_norm=self.norm(f"{prefix}.{mlp_norm}", hidden),
            gate_up=self._linear(
                {
                    f"{mlp}.gate_proj": hparams.intermediate_size,
                    f"{mlp}.up_proj": hparams.intermediate_size,
                },
                hidden,
                has_bias=hparams.mlp_bias,
            ),
            down=self._linear(
                {f"{mlp}.down_proj": hidden}, hparams.intermediate_size, has_bias=hparams.mlp_bias
            ),
            mlp_output_norm=self.norm(f"{prefix}.post_feedforward_layernorm", hidden)
            if sandwich
            else None,
        )

    def norm(self, name: str, size: int) -> RmsNorm:
        """The norm whose weight is `name`.weight."""
        return RmsNorm(
            self.tensor(f"{name}.weight", size),
            self._hparams.norm_eps,
            is_zero_centred=self._hparams.is_norm_zero_centred,
        )

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor that must have this shape."""
        tensor = self._checkpoint.take(name)
        self._require_shape(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point():
            raise WeightsError(
                f"tensor {name} is of type {str(tensor.dtype).removeprefix('torch.')}; weights "
                "are read as float32, float16, bfloat16 or GGUF blocks",
                hint="convert the checkpoint to one of these",
            )
        return tensor

    def weight(self, name: str, num_out: int, num_in: int) -> StoredWeight:
        """A matrix of this shape, in blocks as stored where the kernels multiply such."""
        blocks = self._checkpoint.raw(name) if self.kernels is not None else None
        if blocks is None:
            return self.tensor(name, num_out, num_in)
        self._require_shape(name, blocks.shape, (num_out, num_in))
        if can_hold(blocks):
            self.num_in_blocks += 1
            return blocks
        self._widened[blocks.block.name] += 1
        return torch.from_numpy(blocks.dequantize())

    def warn_of_widened(self) -> None:
        """Say once which block formats cost more memory, and time, than they are stored in."""
        if self._widened:
            counts = ", ".join(f"{count} in {name}" for name, count in self._widened.items())
            log.warning(
                "matrices are held as bfloat16, 2 bytes a weight (%s), because native kernels "
                "multiply only Q8_0, Q4_0 and Q4_1 as stored; answers are those of the stored "
                "values rounded to bfloat16. For a faster model fetch one of these types, or "
                "convert with llama.cpp: llama-quantize IN.gguf OUT.gguf Q8_0",
                counts,
            )

    def optional(self, name: str, num_out: int, num_in: int) -> StoredWeight | None:
        """As `weight`, or None if there is no such tensor."""
        return self.weight(name, num_out, num_in) if name in self._checkpoint.names() else None

    def linear_of(self, parts: Sequence[StoredWeight], bias: Tensor | None = None) -> Linear:
        """One product with the matrices one below the other."""
        if self.kernels is not None:
            return NativeLinear(self.kernels, parts, bias, self._activations)
        return self.factory.make(
            torch.cat([part for part in parts if isinstance(part, Tensor)]), bias
        )

    def _require_shape(self, name: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if given != wanted:
            raise WeightsError(
                f"tensor {name} has shape {list(given)}, but config.json asks for {list(wanted)}"
            )

    def _head_norm(self, name: str) -> RmsNorm | None:
        return self.norm(name, self._hparams.head_dim) if self._hparams.has_qk_norm else None

    def _linear(self, parts: Mapping[str, int], num_in: int, *, has_bias: bool) -> Linear:
        """One product whose output rows are those of `parts` (name -> rows) in order."""
        weights = [self.weight(f"{name}.weight", rows, num_in) for name, rows in parts.items()]
        biases = [self.tensor(f"{name}.bias", rows) for name, rows in parts.items() if has_bias]
        return self.linear_of(weights, torch.cat(biases) if biases else None)
