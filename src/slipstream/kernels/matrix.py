"""Weights packed for the native kernels, and products with them."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.structs import (
    ADD_TO_FLOAT32,
    FORMATS,
    INPUTS,
    TO_BFLOAT16,
    TO_FLOAT32,
    Matrices,
    Matrix,
    Product,
)
from slipstream.weights.gguf_blocks import QuantizedTensor

StoredWeight = Tensor | QuantizedTensor
"""[num_out, num_in]: a tensor (held as bfloat16) or blocks of Q8_0, Q4_0 or Q4_1 (held as such)."""

Activations = Literal["bfloat16", "int8"]
"""How a row enters a product."""

OUT_STEP = 16
"""Outputs of a tile; a matrix can be divided between tiles."""


class PackedMatrix:
    """y = x W^T + b for any number of rows; a row's bits do not depend on the others.

    Products of bfloat16 are added in float32 by 32 inputs: even inputs in order, odd inputs in
    order, their sum to the total. Of quantised weights the codes are multiplied, which are exact in
    bfloat16, and a block's sum is scaled (`csrc/linear.hpp`). `twins.py` says the same in
    torch.

    Args:
        parts: Matrices of equal width, one below the other.
        bias: [num_out] or None.
        activations: How rows enter products with stored blocks: "int8" rounds each row's 32 inputs
            of a block to 8 bit (`csrc/linear_int8.hpp`); bfloat16 tensors take
            bfloat16 always.
    Attributes:
        library: The kernels that multiply.
        shape: (num_out, num_in); nbytes: As held.
        formats: Of each product that one call makes.
        activations: Likewise, how rows enter it.
    """

    def __init__(
        self,
        library: KernelLibrary,
        parts: Sequence[StoredWeight],
        bias: Tensor | None = None,
        activations: Activations = "bfloat16",
    ) -> None:
        self.library = library
        parts = _merged(parts)
        self._bias = None if bias is None else bias.float().contiguous()
        self.shape = (sum(part.shape[0] for part in parts), int(parts[0].shape[1]))
        self.formats = tuple(_format_name(part) for part in parts)
        self.activations: tuple[Activations, ...] = tuple(
            activations if isinstance(part, QuantizedTensor) else "bfloat16" for part in parts
        )
        self.matrices = (Matrix * len(parts))()
        self._tiles: list[Tensor] = []
        first = 0
        for matrix, part, inputs in zip(self.matrices, parts, self.activations, strict=True):
            matrix.bias = None if self._bias is None else self._bias[first:].data_ptr()
            matrix.format, matrix.inputs = FORMATS[_format_name(part)], INPUTS[inputs]
            matrix.num_out, matrix.num_in = part.shape
            self._tiles.append(_pack(library, matrix, part))
            matrix.tiles = self._tiles[-1].data_ptr()
            first += part.shape[0]
        self.nbytes = sum(tiles.nbytes for tiles in self._tiles)

    def multiply(self, x: Tensor, out: Tensor, *, adds: bool = False) -> Tensor:
        """Multiply rows.

        Args:
            x: [rows, num_in] bfloat16, its last axis without gaps.
            out: [rows, num_out] float32 or bfloat16, likewise; overwritten.
            adds: Add to `out` (float32) instead.
        Returns: `out`.
        """
        assert x.dtype == torch.bfloat16
        assert x.shape[1] == self.shape[1]
        assert out.shape == (len(x), self.shape[0])
        assert x.stride(-1) == out.stride(-1) == 1
        if len(x) == 0:
            return out
        store = TO_FLOAT32 if out.dtype == torch.float32 else TO_BFLOAT16
        products = (Product * len(self.matrices))()
        first = 0
        for product, matrix in zip(products, self.matrices, strict=True):
            product.matrix = matrix
            product.x, product.x_stride = x.data_ptr(), x.stride(0)
            product.out = out.data_ptr() + first * out.itemsize
            product.out_stride, product.num_rows = out.stride(0), len(x)
            product.store = ADD_TO_FLOAT32 if adds else store
            first += matrix.num_out
        self.library.functions.sl_linear(
            self.library.isa, torch.get_num_threads(), products, len(products)
        )
        return out

    def outputs(self, first: int, num_out: int) -> PackedMatrix:
        """The product with some of the outputs, over the same memory.

        Args:
            first: A multiple of `OUT_STEP` in the part that it lies in.
        """
        pieces: list[Matrix] = []
        start = 0
        for matrix in self.matrices:
            begin = max(first, start)
            count = min(first + num_out, start + matrix.num_out) - begin
            if count > 0:
                pieces.append(self._piece(matrix, begin - start, count))
            start += matrix.num_out
        some = copy.copy(self)
        some.matrices = (Matrix * len(pieces))(*pieces)
        some.shape = (num_out, self.shape[1])
        return some

    def _piece(self, matrix: Matrix, offset: int, count: int) -> Matrix:
        assert offset % OUT_STEP == 0
        piece = Matrix.from_buffer_copy(matrix)
        piece.tiles += self.library.functions.sl_packed_bytes(matrix.format, offset, matrix.num_in)
        if piece.bias is not None:
            piece.bias += offset * torch.float32.itemsize
        piece.num_out = count
        return piece

    def struct(self) -> Matrices:
        """The matrices as C sees them; valid as long as this object."""
        return Matrices(ctypes.addressof(self.matrices), len(self.matrices), self.shape[0])

    def read_rows(self, rows: Tensor) -> Tensor:
        """Weights of some outputs: [n] int64 -> [n, num_in] float32.

        Only for a matrix in one part.
        """
        out = torch.empty(len(rows), self.shape[1])
        self.library.functions.sl_read_rows(
            ctypes.byref(self.single()),
            ctypes.c_void_p(rows.data_ptr()),
            len(rows),
            ctypes.c_void_p(out.data_ptr()),
        )
        return out

    def single(self) -> Matrix:
        """The only part as C sees it; valid as long as this object."""
        assert len(self.matrices) == 1
        return self.matrices[0]


def can_hold(part: QuantizedTensor) -> bool:
    """Whether the kernels multiply blocks of this format as stored."""
    return part.block.name in FORMATS and part.block.is_quantized


def _merged(parts: Sequence[StoredWeight]) -> list[StoredWeight]:
    """Neighbours of one format as one matrix: fewer products, evenly shared by threads."""
    merged: list[StoredWeight] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(last, Tensor) and isinstance(part, Tensor):
            merged[-1] = torch.cat((last, part))
        elif (
            isinstance(last, QuantizedTensor)
            and isinstance(part, QuantizedTensor)
            and last.block == part.block
        ):
            shape = (last.shape[0] + part.shape[0], last.shape[1])
            blocks = np.concatenate((last.blocks, part.blocks))
            merged[-1] = QuantizedTensor(part.block, shape, blocks)
        else:
            merged.append(part)
    return merged


def _format_name(part: StoredWeight) -> str:
    return part.block.name if isinstance(part, QuantizedTensor) else "BF16"


def _pack(library: KernelLibrary, matrix: Matrix, part: StoredWeight) -> Tensor:
    """Tiles of a matrix whose other fields are set."""
    num_bytes = library.functions.sl_packed_bytes(matrix.format, matrix.num_out, matrix.num_in)
    tiles = library.weight_memory.take(num_bytes)
    if isinstance(part, QuantizedTensor):
        blocks = np.ascontiguousarray(part.blocks)
        address = blocks.ctypes.data
    else:
        held = part.to(torch.bfloat16).contiguous()
        address = held.data_ptr()
    library.functions.sl_pack(
        library.isa,
        ctypes.byref(matrix),
        ctypes.c_void_p(address),
        ctypes.c_void_p(tiles.data_ptr()),
    )
    return tiles
