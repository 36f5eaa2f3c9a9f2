"""Weights packed for the native kernels, and products with them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.structs import (
    ADD_TO_FLOAT32,
    FORMATS,
    TO_BFLOAT16,
    TO_FLOAT32,
    Matrices,
    Matrix,
    Product,
)
from slipstream.weights.gguf_blocks import QuantizedTensor

StoredWeight = Tensor | QuantizedTensor
"""[num_out, num_in]: a tensor (held as bfloat16) or blocks of Q8_0, Q4_0 or Q4_1 (held as such)."""


class PackedMatrix:
    """y = x W^T + b for any number of rows; a row's bits do not depend on the others.

    Products of bfloat16 are added in float32 by 32 inputs: even inputs in order, odd inputs in
    order, their sum to the total. Of quantised weights the codes are multiplied, which are exact in
    bfloat16, and a block's sum is scaled (`csrc/linear.hpp`). `matrix_twin` and `block_twin` say
    the same in torch.

    Args:
        parts: Matrices of equal width, one below the other.
        bias: [num_out] or None.
    Attributes:
        shape: (num_out, num_in); nbytes: As held.
        formats: Of each product that one call makes.
    """

    def __init__(
        self, library: KernelLibrary, parts: Sequence[StoredWeight], bias: Tensor | None = None
    ) -> None:
        self._library = library
        parts = _merged(parts)
        self._tiles = [_pack(library, part) for part in parts]
        self._bias = None if bias is None else bias.float().contiguous()
        self.shape = (sum(part.shape[0] for part in parts), int(parts[0].shape[1]))
        self.nbytes = sum(tiles.nbytes for tiles in self._tiles)
        self.formats = tuple(_format_name(part) for part in parts)
        self.matrices = (Matrix * len(parts))()
        first = 0
        for matrix, part, tiles in zip(self.matrices, parts, self._tiles, strict=True):
            matrix.tiles = tiles.data_ptr()
            matrix.bias = None if self._bias is None else self._bias[first:].data_ptr()
            matrix.format = FORMATS[_format_name(part)]
            matrix.num_out, matrix.num_in = part.shape
            first += part.shape[0]

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
        self._library.functions.sl_linear(
            self._library.isa, torch.get_num_threads(), products, len(products)
        )
        return out

    def struct(self) -> Matrices:
        """The matrices as C sees them; valid as long as this object."""
        return Matrices(ctypes.addressof(self.matrices), len(self.matrices), self.shape[0])

    def read_rows(self, rows: Tensor) -> Tensor:
        """Weights of some outputs: [n] int64 -> [n, num_in] float32.

        Only for a matrix in one part.
        """
        out = torch.empty(len(rows), self.shape[1])
        self._library.functions.sl_read_rows(
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


def matrix_twin(x: Tensor, weight: Tensor) -> Tensor:
    """What `PackedMatrix` computes, in plain torch: the oracle of its tests.

    Args:
        x: [rows, num_in] bfloat16; weight: [num_out, num_in] bfloat16.
    Returns: [rows, num_out] float32. Products of two bfloat16 are exact in float32, so a fused
    multiplication and addition is the same as one after the other.
    """
    total = torch.zeros(len(x), len(weight))
    for link in _links(x, weight).unbind(-1):
        total += link
    return total


def block_twin(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """What `PackedMatrix` computes of stored blocks, in plain torch: the oracle of its tests.

    Args:
        x: [rows, num_in] bfloat16; weight: blocks of 32 inputs, as stored.
    Returns: [rows, num_out] float32; a scale times a sum is added with one rounding.
    """
    codes, scales, minima = _parts(weight)
    links = _links(x, codes)
    row_sums = _links(x, torch.ones(1, x.shape[1]))
    total = torch.zeros(len(x), len(codes))
    for step in range(links.shape[-1]):
        total = _fused(links[..., step], scales[:, step], total)
        if minima is not None:
            total = _fused(row_sums[..., step], minima[:, step], total)
    return total


def _links(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of products by 32 inputs, [rows, num_out, steps]."""
    num_steps = -(-x.shape[1] // 32)
    padding = (0, num_steps * 32 - x.shape[1])
    rows = torch.nn.functional.pad(x.float(), padding).view(len(x), 1, num_steps, 16, 2)
    columns = torch.nn.functional.pad(weight.float(), padding).view(1, -1, num_steps, 16, 2)
    links = torch.zeros(len(x), len(weight), num_steps, 2)
    for pair in range(16):
        links += rows[:, :, :, pair] * columns[:, :, :, pair]
    return links[..., 0] + links[..., 1]


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c, rounded to float32 once (the product of two float32 is exact in float64, and a sum
    that float64 rounds to a tie of float32 is too rare to be met)."""
    return (a.double() * b.double() + c.double()).float()


def _parts(weight: QuantizedTensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes [num_out, num_in], scales [num_out, steps] and minima, likewise, or None."""
    num_out, num_in = weight.shape
    has_minima = weight.block.name == "Q4_1"
    blocks = np.ascontiguousarray(weight.blocks)
    header = 4 if has_minima else 2
    halves = blocks[:, :header].copy().view(np.float16).astype(np.float32)
    scales = torch.from_numpy(halves.reshape(num_out, -1, header // 2))
    data = blocks[:, header:]
    if weight.block.name == "Q8_0":
        codes = data.view(np.int8).astype(np.float32)
    else:
        offset = 0 if has_minima else 8
        codes = np.concatenate((data & 15, data >> 4), 1).astype(np.float32) - offset
    whole = torch.from_numpy(codes.reshape(num_out, num_in))
    return whole, scales[..., 0], scales[..., 1] if has_minima else None


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


def _pack(library: KernelLibrary, part: StoredWeight) -> Tensor:
    format_id = FORMATS[_format_name(part)]
    num_out, num_in = part.shape
    num_bytes = library.functions.sl_packed_bytes(format_id, num_out, num_in)
    tiles = library.weight_memory.take(num_bytes)
    if isinstance(part, QuantizedTensor):
        blocks = np.ascontiguousarray(part.blocks)
        address = blocks.ctypes.data
    else:
        held = part.to(torch.bfloat16).contiguous()
        address = held.data_ptr()
    library.functions.sl_pack(
        format_id,
        num_out,
        num_in,
        ctypes.c_void_p(address),
        ctypes.c_void_p(tiles.data_ptr()),
    )
    return tiles
