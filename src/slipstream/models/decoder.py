"""The one decoder that all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.attention import native
from slipstream.attention.backend import (
    AttentionBackend,
    AttentionShape,
    IntArray,
    PreparedAttention,
)
from slipstream.attention.native import NativeAttention
from slipstream.attention.reference import TorchAttention
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.states import StateSpan
from slipstream.kv.storage import KvStorage
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.layers.block import DecoderLayer, LayerContext
from slipstream.models.layers.delta import DeltaNet
from slipstream.models.layers.embedding import Embedding, PackedEmbedding, PackedEnds
from slipstream.models.layers.linear import Linear, NativeLinear, RowProofs
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable, Rotation

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """One pass as arrays, its rows padded to a sum of admitted row counts.

    Attributes:
        tokens, positions, slots: [rows] int64.
        max_position: Largest position.
        cuts: Row counts, each admitted, by which rows go through the layers; their sum is `rows`.
        cover: Admitted row counts for any other number of rows, at least as many in sum.
        attention: Prepared attention by window.
        logit_rows: [logit rows, padded] int64 rows whose logits are wanted.
        logit_cuts: Row counts, each admitted, of the product with the vocabulary; their sum is
            `len(logit_rows)`.
        tap_layer_ids: Layers whose output is wanted (-1 = embedding output).
        spans: Rows of each sequence, for recurrent layers.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    max_position: int
    cuts: Sequence[int]
    cover: Callable[[int], Sequence[int]]
    attention: Mapping[int | None, PreparedAttention]
    logit_rows: IntArray
    logit_cuts: Sequence[int]
    tap_layer_ids: Sequence[int] = ()
    spans: Sequence[StateSpan] = ()


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

    def packed_ends(self) -> PackedEnds | None:
        """Its first and last matrix for native calls of draft nets; None where torch has them."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Weights, in the order of the pass."""

    embedding: Embedding
    layers: Sequence[DecoderLayer]
    final_norm: RmsNorm
    head: Linear


class Decoder:
    """A decoder with rows as its only axis: a row's result depends on its own history alone.

    Products have the model's dtype; the residual stream, norms, rotary embedding and attention are
    float32. (A bfloat16 residual stream costs 18 times the divergence from float32; docs/log.md.)

    Args:
        hparams: Shape and arithmetic.
        dtype: Of the products.
        proofs: Which row counts are exact for the products.
        kernels: Of native products; None where torch multiplies.
    """

    def __init__(
        self,
        hparams: Hparams,
        dtype: torch.dtype,
        parts: DecoderParts,
        proofs: RowProofs,
        kernels: KernelLibrary | None = None,
    ) -> None:
        self.hparams = hparams
        self.layers = tuple(parts.layers)
        self.final_norm = parts.final_norm
        self.dtype = dtype
        self._embedding = parts.embedding
        self.head = parts.head
        self._proofs = proofs
        self._kernels = kernels
        self._tables: dict[RotaryParams, RotaryTable] = {
            layer.rotary: RotaryTable(layer.rotary, hparams.rotary_dim) for layer in hparams.layers
        }
        linears = [linear for layer in self.layers for linear in layer.linears()]
        norms = [norm for layer in self.layers for norm in layer.norms()]
        self.weight_bytes = (
            parts.embedding.nbytes
            + sum(linear.nbytes for linear in (*linears, self.head))
            + sum(norm.nbytes for norm in (*norms, self.final_norm))
        )

    def attention_backend(self) -> AttentionBackend:
        """See `Model`."""
        return attention_backend(self.hparams, self._kernels)

    def admitted_row_counts(self) -> tuple[int, ...] | None:
        """See `Model`."""
        return self._proofs.admitted(linear for layer in self.layers for linear in layer.linears())

    def admitted_logit_row_counts(self) -> tuple[int, ...] | None:
        """See `Model`."""
        return self._proofs.admitted((self.head,))

    def linear_kinds(self) -> str:
        """See `Model`; recurrences, whose order of addition counts as well, are named beside."""
        rules = {
            layer.mixer.rule_name for layer in self.layers if isinstance(layer.mixer, DeltaNet)
        }
        return ", ".join((self._proofs.description(), *(f"delta rule {name}" for name in rules)))

    @torch.inference_mode()
    def forward(self, inputs: DecoderInput, storage: KvStorage) -> DecoderOutput:
        """Run all layers; each row's key and value are stored in its slot on the way."""
        hidden = self.embed(torch.from_numpy(inputs.tokens))
        positions = torch.from_numpy(inputs.positions)
        taps = {-1: hidden} if -1 in inputs.tap_layer_ids else {}
        context = LayerContext(
            dtype=self.dtype,
            cuts=inputs.cuts,
            cover=inputs.cover,
            slots=torch.from_numpy(inputs.slots),
            attention=inputs.attention,
            rotations={
                params: Rotation(*table.angles(positions, inputs.max_position))
                for params, table in self._tables.items()
            },
            storage=storage,
            spans=inputs.spans,
        )
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, context)
            if index in inputs.tap_layer_ids:
                taps[index] = hidden
        return DecoderOutput(self._logits(hidden, inputs).numpy(), taps)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        return self._embedding(tokens)

    def vocabulary_logits(self, normed: Tensor) -> Tensor:
        """See `Model`."""
        return self.head(normed.to(self.dtype)).float()

    def packed_ends(self) -> PackedEnds | None:
        """See `Model`."""
        embedding, head = self._embedding, self.head
        if not isinstance(embedding, PackedEmbedding) or not isinstance(head, NativeLinear):
            return None
        scale = embedding.scale
        return PackedEnds(embedding.matrix, head.matrix, 0.0 if scale is None else float(scale))

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


def attention_backend(hparams: Hparams, kernels: KernelLibrary | None) -> AttentionBackend:
    """A new backend: native where there are kernels that compute such attention."""
    shape = attention_shape(hparams)
    # The kernels take a slot's values to lie behind its keys.
    if kernels is not None and hparams.kv_shape.has_values and native.fits(shape):
        return NativeAttention(shape, kernels)
    return TorchAttention(shape)


def _cut(rows: Tensor, cuts: Sequence[int]) -> Sequence[Tensor]:
    return (rows,) if len(cuts) == 1 else rows.split_with_sizes(list(cuts))
