"""The decoder in native kernels: all layers of a pass in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionBackend
from slipstream.attention.native import (
    NativeAttention,
    NativePreparedAttention,
    scale_addresses,
    struct_of,
)
from slipstream.errors import WeightsError
from slipstream.kernels import structs
from slipstream.kernels.address import address_of
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kv.storage import KvStorage
from slipstream.models.decoder import (
    DecoderInput,
    DecoderOutput,
    FloatArray,
    attention_shape,
)
from slipstream.models.hparams import Hparams, RotaryParams
from slipstream.models.layers.attention import Attention
from slipstream.models.layers.block import DecoderLayer
from slipstream.models.layers.embedding import PackedEnds
from slipstream.models.layers.linear import Linear, NativeLinear, native_description
from slipstream.models.layers.mlp import DenseMlp
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
        scale = hparams.embedding_scale
        self._embedding_scale = None if scale is None else torch.tensor(scale).bfloat16()
        self._kernels = kernels
        self._shape = attention_shape(hparams)
        self._tables: dict[RotaryParams, RotaryTable] = {
            layer.rotary: RotaryTable(layer.rotary, hparams.head_dim) for layer in hparams.layers
        }
        self._windows = windows_of(hparams)
        self._structs = (structs.Layer * hparams.num_layers)()
        for struct, layer, params in zip(self._structs, layers, hparams.layers, strict=True):
            fill_layer(struct, layer)
            struct.plan = self._windows.index(params.window)
        self._plans = (structs.AttentionPlan * len(self._windows))()
        self._pass = self._constant_pass()
        self._storage: KvStorage | None = None
        self._num_positions = 0
        self._has_taps = False
        matrices = [matrix_of(linear) for layer in layers for linear in layer.linears()]
        matrices.append(matrix_of(head))
        if embeddings is not matrices[-1]:
            matrices.append(embeddings)
        norms = [norm for layer in layers for norm in layer.norms()]
        self.weight_bytes = sum(matrix.nbytes for matrix in matrices) + sum(
            norm.nbytes for norm in (*norms, final_norm)
        )
        self._linear_kinds = native_description(matrices)

    def trace_into(self, stage_ns: structs.StageTimes | None) -> None:
        """Add the time of each of `structs.STAGES` to `stage_ns` from now on; None ends it.

        Measured by the first thread, waiting for the others included.
        """
        self._stage_ns = stage_ns  # held: C writes to it
        self._pass.stage_ns = None if stage_ns is None else stage_ns.ctypes.data

    def attention_backend(self) -> AttentionBackend:
        """See `Model`."""
        return NativeAttention(self._shape, self._kernels)

    def admitted_row_counts(self) -> None:
        """All: see `Model`."""

    def admitted_logit_row_counts(self) -> None:
        """All: see `Model`."""

    def linear_kinds(self) -> str:
        """See `Model`."""
        return self._linear_kinds

    def forward(self, inputs: DecoderInput, storage: KvStorage) -> DecoderOutput:
        """See `Model`. One call for all of it: between passes the caches hold none of the code
        that Python and torch run, and each of torch's functions then costs 20 us."""
        num_rows = len(inputs.tokens)
        logits = np.empty((len(inputs.logit_rows), self.hparams.vocab_size), np.float32)
        taps = {
            layer: torch.empty(num_rows, self.hparams.hidden_size) for layer in inputs.tap_layer_ids
        }
        if num_rows:
            self._point_to(storage, inputs.max_position)
            self._tap(taps)
            self._run(inputs, logits)
        return DecoderOutput(logits, taps)

    def vocabulary_logits(self, normed: Tensor) -> Tensor:
        """See `Model`."""
        out = torch.empty(len(normed), self.hparams.vocab_size)
        return matrix_of(self.head).multiply(normed.bfloat16(), out)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        embedded = self._embeddings.read_rows(tokens)
        if self._embedding_scale is None:
            return embedded
        return (embedded.bfloat16() * self._embedding_scale).float()

    def packed_ends(self) -> PackedEnds:
        """See `Model`."""
        scale = self._embedding_scale
        return PackedEnds(
            self._embeddings, matrix_of(self.head), 0.0 if scale is None else float(scale)
        )

    def _constant_pass(self) -> structs.Pass:
        """What no pass changes."""
        hparams, scale = self.hparams, self._embedding_scale
        return structs.Pass(
            layers=ctypes.addressof(self._structs),
            plans=ctypes.addressof(self._plans),
            embeddings=ctypes.addressof(self._embeddings.single()),
            final_norm=norm_struct(self.final_norm),
            head=matrix_of(self.head).struct(),
            embedding_scale=0.0 if scale is None else float(scale),
            num_layers=hparams.num_layers,
            hidden_size=hparams.hidden_size,
            intermediate_size=hparams.intermediate_size,
            gate=structs.GATES[hparams.activation],
        )

    def _point_to(self, storage: KvStorage, max_position: int) -> None:
        """Bring addresses into the structures that hold until the storage or a table changes."""
        if storage is self._storage and max_position < self._num_positions:
            return
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
        self._pass.shape = struct_of(self._shape, storage.dtype)
        self._storage = storage
        self._num_positions = min(len(cos) for cos, _ in tables.values())

    def _tap(self, taps: dict[int, Tensor]) -> None:
        """Say where outputs of layers are wanted in this pass."""
        if not taps and not self._has_taps:
            return
        self._has_taps = bool(taps)
        self._pass.embedding_tap = taps[-1].data_ptr() if -1 in taps else None
        for index, struct in enumerate(self._structs):
            struct.tap = taps[index].data_ptr() if index in taps else None

    def _run(self, inputs: DecoderInput, logits: FloatArray) -> None:
        for index, window in enumerate(self._windows):
            prepared = inputs.attention[window]
            assert isinstance(prepared, NativePreparedAttention)
            self._plans[index] = prepared.plan
        arguments = self._pass
        arguments.tokens = address_of(inputs.tokens)
        arguments.positions = address_of(inputs.positions)
        arguments.slots = address_of(inputs.slots)
        arguments.logit_rows = address_of(inputs.logit_rows)
        arguments.logits = address_of(logits)
        arguments.num_rows = len(inputs.tokens)
        arguments.num_logit_rows = len(inputs.logit_rows)
        self._kernels.functions.sl_pass(
            self._kernels.isa, torch.get_num_threads(), ctypes.byref(arguments)
        )


def windows_of(hparams: Hparams) -> list[int | None]:
    """The windows of all layers, each once; None, for no window, comes first.

    Raises:
        WeightsError: If they are more than a native pass can hold.
    """
    windows = sorted({layer.window for layer in hparams.layers}, key=lambda w: w or 0)
    if len(windows) > structs.MAX_PLANS:
        raise WeightsError(
            f"the layers have {len(windows)} different attention windows; the native kernels take "
            f"{structs.MAX_PLANS}",
            hint='set model.dtype to "float32", which torch computes',
        )
    return windows


def fill_layer(struct: structs.Layer, layer: DecoderLayer) -> None:
    """Point to a layer's weights; the layer is a plain one and its products are `NativeLinear`s."""
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, DenseMlp)
    struct.input_norm = norm_struct(layer.input_norm)
    struct.q_norm = norm_struct(mixer.q_norm)
    struct.k_norm = norm_struct(mixer.k_norm)
    struct.attention_output_norm = norm_struct(layer.mixer_output_norm)
    struct.mlp_norm = norm_struct(layer.mlp_norm)
    struct.mlp_output_norm = norm_struct(layer.mlp_output_norm)
    struct.qkv = matrix_of(mixer.qkv).struct()
    struct.attention_output = matrix_of(mixer.output).struct()
    struct.gate_up = matrix_of(mlp.gate_up).struct()
    struct.down = matrix_of(mlp.down).struct()


def norm_struct(norm: RmsNorm | None) -> structs.Norm:
    """A norm as C sees it; valid as long as `norm`."""
    if norm is None:
        return structs.Norm()
    return structs.Norm(norm.scale.data_ptr(), norm.eps, len(norm.scale))


def matrix_of(linear: Linear) -> PackedMatrix:
    """What a `NativeLinear` multiplies with."""
    assert isinstance(linear, NativeLinear)
    return linear.matrix
