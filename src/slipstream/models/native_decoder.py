"""The decoder in native kernels: all layers of a pass in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.backend import AttentionBackend
from slipstream.attention.native import (
    NativeAttention,
    NativePreparedAttention,
    scale_addresses,
    struct_of,
)
from slipstream.kernels import structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kv.storage import KvStorage
from slipstream.models.decoder import DecoderInput, DecoderLayer, DecoderOutput, attention_shape
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.layers.linear import Linear, NativeLinear
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable


class NativeDecoder:
    """See `Model`: bfloat16 products, everything between them in float32, any number of rows.

    What a product reads is rounded to bfloat16 once; queries, the MLP's gates and the residual
    stream stay float32. Logits are float32.

    Args:
        hparams: Shape and arithmetic.
        embeddings: [vocab, hidden], not scaled; the head's matrix where the two are tied.
        layers, final_norm, head: Weights, in the order of the pass; products are `NativeLinear`s.
    """

    dtype = torch.bfloat16

    def __init__(
        self,
        hparams: Hparams,
        embeddings: PackedMatrix,
        layers: Sequence[DecoderLayer],
        final_norm: RmsNorm,
        head: Linear,
        kernels: KernelLibrary,
    ) -> None:
        self.hparams = hparams
        self.layers = tuple(layers)
        self.final_norm = final_norm
        self.head = head
        self._embeddings = embeddings
        self._stage_ns: structs.StageTimes | None = None
        self._kernels = kernels
        self._shape = attention_shape(hparams)
        self._tables: dict[RotaryParams, RotaryTable] = {
            layer.rotary: RotaryTable(layer.rotary, hparams.head_dim) for layer in hparams.layers
        }
        self._windows = sorted({layer.window for layer in hparams.layers}, key=lambda w: w or 0)
        self._structs = (structs.Layer * hparams.num_layers)()
        for struct, layer, params in zip(self._structs, layers, hparams.layers, strict=True):
            _fill(struct, layer)
            struct.plan = self._windows.index(params.window)
        matrices = [_matrix(linear) for layer in layers for linear in layer.linears()]
        matrices.append(_matrix(head))
        if embeddings is not matrices[-1]:
            matrices.append(embeddings)
        norms = [norm for layer in layers for norm in layer.norms()]
        self.weight_bytes = sum(matrix.nbytes for matrix in matrices) + sum(
            norm.nbytes for norm in (*norms, final_norm)
        )
        self._formats = sorted({name for matrix in matrices for name in matrix.formats})

    def trace_into(self, stage_ns: structs.StageTimes | None) -> None:
        """Add the time of each of `structs.STAGES` to `stage_ns` from now on; None ends it.

        Measured by the first thread, waiting for the others included.
        """
        self._stage_ns = stage_ns

    def attention_backend(self) -> AttentionBackend:
        """See `Model`."""
        return NativeAttention(self._shape, self._kernels)

    def admitted_row_counts(self) -> None:
        """All: see `Model`."""

    def admitted_logit_row_counts(self) -> None:
        """All: see `Model`."""

    def linear_kinds(self) -> str:
        """See `Model`. The instruction set is no part of it: all give the same bits."""
        return "native:" + "+".join(self._formats)

    def forward(self, inputs: DecoderInput, storage: KvStorage) -> DecoderOutput:
        """See `Model`."""
        hidden = self.embed(inputs.tokens)
        taps = {-1: hidden.clone()} if -1 in inputs.tap_layer_ids else {}
        for index in inputs.tap_layer_ids:
            taps.setdefault(index, torch.empty_like(hidden))
        self._point_to(storage, inputs.max_position, taps)
        if len(hidden):
            self._run_layers(hidden, inputs, storage)
        return DecoderOutput(self._logits(hidden, inputs.logit_rows), taps)

    def vocabulary_logits(self, normed: Tensor) -> Tensor:
        """See `Model`."""
        out = torch.empty(len(normed), self.hparams.vocab_size)
        return _matrix(self.head).multiply(normed.bfloat16(), out)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        embedded = self._embeddings.read_rows(tokens, self._stage_ns)
        scale = self.hparams.embedding_scale
        if scale is None:
            return embedded
        return (embedded.bfloat16() * torch.tensor(scale, dtype=torch.bfloat16)).float()

    def _point_to(self, storage: KvStorage, max_position: int, taps: dict[int, Tensor]) -> None:
        """Bring addresses into the layers' structures that may change between passes."""
        offset = self.hparams.head_dim // 2 * torch.float32.itemsize
        tables = {params: table.tables(max_position) for params, table in self._tables.items()}
        for index, (struct, params) in enumerate(
            zip(self._structs, self.hparams.layers, strict=True)
        ):
            cos, sin = tables[params.rotary]
            struct.cosines = cos.data_ptr()
            struct.sines = sin.data_ptr() + offset  # a table's first half is negated
            struct.keys = storage.keys[index].data_ptr()
            struct.values = storage.values[index].data_ptr()
            struct.key_scales, struct.value_scales = scale_addresses(storage, index)
            struct.tap = taps[index].data_ptr() if index in taps else None

    def _run_layers(self, hidden: Tensor, inputs: DecoderInput, storage: KvStorage) -> None:
        hparams = self.hparams
        plans = (structs.AttentionPlan * len(self._windows))()
        for index, window in enumerate(self._windows):
            prepared = inputs.attention[window]
            assert isinstance(prepared, NativePreparedAttention)
            plans[index] = prepared.plan
        arguments = structs.Pass(
            ctypes.addressof(self._structs),
            ctypes.addressof(plans),
            inputs.positions.data_ptr(),
            inputs.slots.data_ptr(),
            hidden.data_ptr(),
            struct_of(self._shape, storage.dtype),
            hparams.num_layers,
            len(hidden),
            hparams.hidden_size,
            hparams.intermediate_size,
            structs.GATES[hparams.activation],
            self._trace_address(),
        )
        self._kernels.functions.sl_pass(
            self._kernels.isa, torch.get_num_threads(), ctypes.byref(arguments)
        )

    def _logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        logits = torch.empty(len(rows), self.hparams.vocab_size)
        if len(rows) == 0:
            return logits
        arguments = structs.Head(
            _norm(self.final_norm),
            _matrix(self.head).struct(),
            hidden.data_ptr(),
            rows.data_ptr(),
            logits.data_ptr(),
            len(rows),
            self._trace_address(),
        )
        self._kernels.functions.sl_head(
            self._kernels.isa, torch.get_num_threads(), ctypes.byref(arguments)
        )
        return logits

    def _trace_address(self) -> int | None:
        return None if self._stage_ns is None else self._stage_ns.ctypes.data


def _fill(struct: structs.Layer, layer: DecoderLayer) -> None:
    struct.input_norm = _norm(layer.input_norm)
    struct.q_norm = _norm(layer.q_norm)
    struct.k_norm = _norm(layer.k_norm)
    struct.attention_output_norm = _norm(layer.attention_output_norm)
    struct.mlp_norm = _norm(layer.mlp_norm)
    struct.mlp_output_norm = _norm(layer.mlp_output_norm)
    struct.qkv = _matrix(layer.qkv).struct()
    struct.attention_output = _matrix(layer.attention_output).struct()
    struct.gate_up = _matrix(layer.gate_up).struct()
    struct.down = _matrix(layer.down).struct()


def _norm(norm: RmsNorm | None) -> structs.Norm:
    if norm is None:
        return structs.Norm()
    return structs.Norm(norm.scale.data_ptr(), norm.eps, len(norm.scale))


def _matrix(linear: Linear) -> PackedMatrix:
    assert isinstance(linear, NativeLinear)
    return linear.matrix
