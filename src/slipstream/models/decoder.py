"""The one decoder that all families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.attention.backend import (
    AttentionBackend,
    AttentionShape,
    IntArray,
    PreparedAttention,
)
from slipstream.attention.reference import TorchAttention
from slipstream.kv.storage import KvStorage
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.layers.activation import GatedActivation
from slipstream.models.layers.linear import Linear, LinearFactory
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable, Rotation

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer; a norm that the family lacks is None."""

    input_norm: RmsNorm
    qkv: Linear  # rows of queries, then keys, then values
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    attention_output: Linear
    attention_output_norm: RmsNorm | None
    mlp_norm: RmsNorm
    gate_up: Linear  # rows of gates, then of ups
    down: Linear
    mlp_output_norm: RmsNorm | None

    def linears(self) -> tuple[Linear, ...]:
        """The layer's matrix products."""
        return self.qkv, self.attention_output, self.gate_up, self.down

    def norms(self) -> tuple[RmsNorm, ...]:
        """The layer's norms."""
        norms = (self.input_norm, self.q_norm, self.k_norm, self.attention_output_norm)
        return tuple(
            norm for norm in (*norms, self.mlp_norm, self.mlp_output_norm) if norm is not None
        )


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """One pass as arrays, its rows padded to a sum of admitted row counts.

    Attributes:
        tokens, positions, slots: [rows] int64.
        max_position: Largest position.
        cuts: Row counts, each admitted, by which rows go through the layers; their sum is `rows`.
        attention: Prepared attention by window.
        logit_rows: [logit rows, padded] int64 rows whose logits are wanted.
        logit_cuts: Row counts, each admitted, of the product with the vocabulary; their sum is
            `len(logit_rows)`.
        tap_layer_ids: Layers whose output is wanted (-1 = embedding output).
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    max_position: int
    cuts: Sequence[int]
    attention: Mapping[int | None, PreparedAttention]
    logit_rows: IntArray
    logit_cuts: Sequence[int]
    tap_layer_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class DecoderOutput:
    """Logits [logit rows, vocab] float32 and taps [rows, hidden] by layer, padding included."""

    logits: FloatArray
    taps: dict[int, Tensor]


class Model(Protocol):
    """What runs a pass: `Decoder` in torch, `NativeDecoder` in native kernels."""

    hparams: Hparams
    dtype: torch.dtype
    weight_bytes: int
    layers: tuple[DecoderLayer, ...]
    final_norm: RmsNorm
    head: Linear

    def attention_backend(self) -> AttentionBackend:
        """A new backend of the kind that the model runs with."""

    def admitted_row_counts(self) -> tuple[int, ...] | None:
        """Row counts that are exact for every layer's products, ascending; None = all."""

    def admitted_logit_row_counts(self) -> tuple[int, ...] | None:
        """Row counts that are exact for the product with the vocabulary; None = all."""

    def linear_kinds(self) -> str:
        """How matrices are multiplied, for the numerics fingerprint."""

    def forward(self, inputs: DecoderInput, storage: KvStorage) -> DecoderOutput:
        """Run all layers; each row's key and value are stored in its slot on the way."""

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer reads: [rows] int64 -> [rows, hidden] float32."""

    def vocabulary_logits(self, normed: Tensor) -> Tensor:
        """The product with the vocabulary, for whoever shares it; exact rows are not promised.

        Args:
            normed: [rows, hidden] float32, behind a final norm.
        Returns: [rows, vocab] float32.
        """


class Decoder:
    """A decoder with rows as its only axis: a row's result depends on its own history alone.

    Products have the model's dtype; the residual stream, norms, rotary embedding and attention are
    float32. (A bfloat16 residual stream costs 18 times the divergence from float32; docs/log.md.)

    Args:
        hparams: Shape and arithmetic.
        embeddings: [vocab, hidden] in the model's dtype, scaled.
        layers, final_norm, head: Weights, in the order of the pass.
        activation: Between the MLP's two products.
        factory: The one that made all `Linear`s; it knows which row counts are exact.
    """

    def __init__(
        self,
        hparams: Hparams,
        embeddings: Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: RmsNorm,
        head: Linear,
        activation: GatedActivation,
        factory: LinearFactory,
    ) -> None:
        self.hparams = hparams
        self.layers = tuple(layers)
        self.final_norm = final_norm
        self.dtype = embeddings.dtype
        self._embeddings = embeddings
        self.head = head
        self._activation = activation
        self._factory = factory
        self._tables: dict[RotaryParams, RotaryTable] = {
            layer.rotary: RotaryTable(layer.rotary, hparams.head_dim) for layer in hparams.layers
        }
        linears = [linear for layer in layers for linear in layer.linears()]
        norms = [norm for layer in layers for norm in layer.norms()]
        self.weight_bytes = (
            embeddings.nbytes
            + sum(linear.nbytes for linear in (*linears, head))
            + sum(norm.nbytes for norm in (*norms, final_norm))
        )

    def attention_backend(self) -> AttentionBackend:
        """See `Model`."""
        return TorchAttention(attention_shape(self.hparams))

    def admitted_row_counts(self) -> tuple[int, ...]:
        """Row counts that are exact for every layer's products, ascending."""
        return self._factory.admitted(linear for layer in self.layers for linear in layer.linears())

    def admitted_logit_row_counts(self) -> tuple[int, ...]:
        """Row counts that are exact for the product with the vocabulary, ascending."""
        return self._factory.admitted((self.head,))

    def linear_kinds(self) -> str:
        """How matrices are multiplied, for the numerics fingerprint."""
        return self._factory.description()

    @torch.inference_mode()
    def forward(self, inputs: DecoderInput, storage: KvStorage) -> DecoderOutput:
        """Run all layers; each row's key and value are stored in its slot on the way."""
        embedded = self.embed(torch.from_numpy(inputs.tokens))
        positions = torch.from_numpy(inputs.positions)
        parts = list(_cut(embedded, inputs.cuts))
        taps = {-1: embedded} if -1 in inputs.tap_layer_ids else {}
        slots = _cut(torch.from_numpy(inputs.slots), inputs.cuts)
        rotations = {
            params: [
                Rotation(cos, sin)
                for cos, sin in zip(
                    *(
                        _cut(angles, inputs.cuts)
                        for angles in table.angles(positions, inputs.max_position)
                    ),
                    strict=True,
                )
            ]
            for params, table in self._tables.items()
        }
        for index, layer in enumerate(self.layers):
            params = self.hparams.layers[index]
            rotated = [
                self._project(index, *of_part, storage)
                for of_part in zip(parts, rotations[params.rotary], slots, strict=True)
            ]
            queries = rotated[0] if len(rotated) == 1 else torch.cat(rotated)
            mixed = inputs.attention[params.window].attend(index, queries, storage)
            parts = [
                self._finish(layer, *of_part)
                for of_part in zip(parts, _cut(mixed, inputs.cuts), strict=True)
            ]
            if index in inputs.tap_layer_ids:
                taps[index] = torch.cat(parts)
        return DecoderOutput(self._logits(torch.cat(parts), inputs).numpy(), taps)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        return self._embeddings.index_select(0, tokens).float()

    def vocabulary_logits(self, normed: Tensor) -> Tensor:
        """See `Model`."""
        return self.head(normed.to(self.dtype)).float()

    def _project(
        self,
        index: int,
        hidden: Tensor,  # [rows, hidden] float32
        rotation: Rotation,
        slots: Tensor,  # [rows]
        storage: KvStorage,
    ) -> Tensor:
        """Store the layer's keys and values; give its queries [rows, heads, head_dim] float32."""
        layer, hparams = self.layers[index], self.hparams
        num_heads, num_rotated = hparams.num_heads, hparams.num_heads + hparams.kv_heads
        qkv = layer.qkv(layer.input_norm(hidden).to(self.dtype))
        qkv = qkv.view(len(hidden), -1, hparams.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = layer.q_norm(qkv[:, :num_heads])
            keys = layer.k_norm(qkv[:, num_heads:num_rotated])
            rotated = rotation.apply(torch.cat((queries, keys), 1))
        else:
            rotated = rotation.apply(qkv[:, :num_rotated].float())
        storage.write(index, slots, rotated[:, num_heads:], qkv[:, num_rotated:])
        return rotated[:, :num_heads]

    def _finish(self, layer: DecoderLayer, hidden: Tensor, mixed: Tensor) -> Tensor:
        """From what attention gave ([rows, heads * head_dim] float32) to the layer's output."""
        output = layer.attention_output(mixed.to(self.dtype))
        if layer.attention_output_norm is not None:
            output = layer.attention_output_norm(output)
        hidden = hidden + output
        output = layer.gate_up(layer.mlp_norm(hidden).to(self.dtype))
        output = layer.down(self._activation(output))
        if layer.mlp_output_norm is not None:
            output = layer.mlp_output_norm(output)
        return hidden.add_(output)

    def _logits(self, hidden: Tensor, inputs: DecoderInput) -> Tensor:
        wanted = hidden.index_select(0, torch.from_numpy(inputs.logit_rows))
        normed = self.final_norm(wanted).to(self.dtype)
        logits = [self.head(part) for part in _cut(normed, inputs.logit_cuts)]
        if not logits:
            return hidden.new_empty(0, self.hparams.vocab_size)
        return (logits[0] if len(logits) == 1 else torch.cat(logits)).float()


def attention_shape(hparams: Hparams) -> AttentionShape:
    """What a model asks of an attention backend."""
    return AttentionShape(
        hparams.num_heads, hparams.kv_heads, hparams.head_dim, hparams.attention_scale
    )


def _cut(rows: Tensor, cuts: Sequence[int]) -> Sequence[Tensor]:
    return (rows,) if len(cuts) == 1 else rows.split_with_sizes(list(cuts))
