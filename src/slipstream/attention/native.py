"""Attention in native kernels: online softmax over key blocks that are fixed by position."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape, IntArray, KvReader, Rows
from slipstream.kernels import structs
from slipstream.kernels.address import address_of
from slipstream.kernels.library import KernelLibrary

_FEW_ROWS = 16


_KV_FORMATS = {
    torch.float32: structs.KV_FLOAT32,
    torch.bfloat16: structs.KV_BFLOAT16,
    torch.int8: structs.KV_INT8,
}


class KvTensors(Protocol):
    """Stored keys and values by layer, and scales of codes; `kv.storage.KvStorage` is one.

    A slot's keys of all heads lie together and its values right behind them.
    """

    @property
    def keys(self) -> Sequence[Tensor]:
        """Keys of each layer."""

    @property
    def values(self) -> Sequence[Tensor]:
        """Values of each layer."""

    @property
    def key_scales(self) -> Sequence[Tensor]:
        """[slots, kv_heads] float32 of each layer; empty unless keys are int8."""

    @property
    def value_scales(self) -> Sequence[Tensor]:
        """The same for values."""


class NativeAttention:
    """The backends `native-vector` and `native-amx`, exact by construction.

    Every row goes through its key blocks of 32 positions in order, by itself; rows of a tile share
    only the reading of keys. Threads take tiles and key heads.
    """

    def __init__(self, shape: AttentionShape, library: KernelLibrary) -> None:
        assert fits(shape)
        # In the order of AMX tiles, weights of the mix are bfloat16, so the results are others.
        isa = library.attention_isa_name(struct_of(shape, torch.bfloat16))
        self.name = "native-amx" if isa in ("amx", "avx512_bf16") else "native-vector"
        self.shape = shape
        self._library = library

    def kernel(self, kv_dtype: torch.dtype) -> str:
        """See `AttentionBackend.kernel`."""
        isa = self._library.attention_isa_name(struct_of(self.shape, kv_dtype))
        return f"native-{isa}:{str(kv_dtype).removeprefix('torch.')}"

    def prove(self) -> None:
        """Nothing to find out: no result depends on the number of threads."""

    def prepare(
        self, branches: Sequence[Rows], num_rows: int, window: int | None
    ) -> NativePreparedAttention:
        """See `AttentionBackend.prepare`."""
        return NativePreparedAttention(self.shape, self._library, branches, window)


class NativePreparedAttention:
    """See `PreparedAttention`; made by `NativeAttention.prepare`.

    Attributes:
        plan: For `structs.Attention`; valid as long as this object.
    """

    def __init__(
        self,
        shape: AttentionShape,
        library: KernelLibrary,
        branches: Sequence[Rows],
        window: int | None,
    ) -> None:
        self._shape = shape
        self._library = library
        self._rows = _joined([branch.rows for branch in branches])
        self._positions = _joined([branch.positions for branch in branches])
        self._slots = _joined([branch.slots for branch in branches])
        self._tiles = _tiles(branches)
        self.plan = structs.AttentionPlan(
            ctypes.addressof(self._tiles),
            address_of(self._rows),
            address_of(self._positions),
            address_of(self._slots),
            len(self._tiles) // 3,
            window or 0,
        )

    def attend(self, layer: int, queries: Tensor, storage: KvReader) -> Tensor:
        """See `PreparedAttention`; `storage` is a `KvTensors`."""
        keys, values = storage.keys[layer], storage.values[layer]  # type: ignore[attr-defined]  # a KvTensors
        shape, queries = self._shape, queries.contiguous()
        out = torch.zeros(len(queries), shape.num_heads * shape.head_dim)
        kernel_shape = struct_of(shape, keys.dtype)
        attention = structs.Attention(
            ctypes.pointer(kernel_shape),
            ctypes.pointer(self.plan),
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            shape.num_heads * shape.head_dim,
            structs.TO_FLOAT32,
            *scale_addresses(storage, layer),  # type: ignore[arg-type]  # a KvTensors
        )
        self._library.functions.sl_attend(
            self._library.isa, torch.get_num_threads(), ctypes.byref(attention)
        )
        return out


def fits(shape: AttentionShape) -> bool:
    """Whether the kernels can compute attention of this shape."""
    return shape.head_dim % 16 == 0


def struct_of(shape: AttentionShape, kv_dtype: torch.dtype) -> structs.AttentionShape:
    """The shape as C sees it.

    Args:
        kv_dtype: float32, bfloat16 or int8, of stored keys and values.
    """
    kv_format = _KV_FORMATS[kv_dtype]
    return structs.AttentionShape(
        shape.num_heads, shape.kv_heads, shape.head_dim, kv_format, shape.scale
    )


def scale_addresses(storage: KvTensors, layer: int) -> tuple[int | None, int | None]:
    """Where the scales of a layer's keys and values lie; None where they have none."""
    if not storage.key_scales:
        return None, None
    return storage.key_scales[layer].data_ptr(), storage.value_scales[layer].data_ptr()


def _tiles(branches: Sequence[Rows]) -> ctypes.Array[ctypes.c_int64]:
    """[tiles, 3] first row, number of rows, first slot; those with most keys come first."""
    tiles: list[tuple[int, int, int, int]] = []
    first_row = first_slot = 0
    for branch in branches:
        positions, num_rows = branch.positions, len(branch.rows)
        for start in range(0, num_rows, structs.MAX_TILE_ROWS):
            number = min(num_rows - start, structs.MAX_TILE_ROWS)
            num_keys = int(positions[start + number - 1]) * number
            tiles.append((-num_keys, first_row + start, number, first_slot))
        first_row += num_rows
        first_slot += len(branch.slots)
    tiles.sort(key=itemgetter(0))
    numbers = [number for tile in tiles for number in tile[1:]]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    if not arrays:
        return np.zeros(0, np.int64)
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return np.ascontiguousarray(joined, np.int64)
