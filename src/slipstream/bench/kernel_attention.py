"""Attention of a draft's rows over a context, in one layer after the other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.backend import AttentionShape, PreparedAttention
from slipstream.attention.native import (
    NativeAttention,
    NativePreparedAttention,
    scale_addresses,
    struct_of,
)
from slipstream.attention.reference import TorchAttention
from slipstream.bench.contest import NATIVE, TORCH, TWIN, Contestant, KernelCase, Rotation, repeat
from slipstream.execution.batch import Branch
from slipstream.kernels import structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.storage import KvStorage

KV_DTYPES = (torch.bfloat16, torch.float32, torch.int8)
_Call = Callable[[], object]


class AttentionCases:
    """Cases of one type of keys and values, by row count.

    Args:
        shape: The model's.
        num_layers: Caches that the calls go round, as the layers of a pass do.
        context_len: Tokens before the rows; the rows are a chain behind them.
        max_rows: Of the widest case.
        twin: Proved for this number of threads.
    """

    def __init__(
        self,
        library: KernelLibrary,
        shape: AttentionShape,
        kv_dtype: torch.dtype,
        *,
        num_layers: int,
        context_len: int,
        max_rows: int,
        twin: TorchAttention,
    ) -> None:
        self._library = library
        self._shape = shape
        self._context_len = context_len
        self._native = NativeAttention(shape, library)
        self._twin = twin
        self._storage = KvStorage(
            context_len + max_rows, num_layers, shape.kv_heads, shape.head_dim, kv_dtype
        )
        slots = torch.arange(self._storage.num_slots)
        for layer in range(num_layers):
            size = (len(slots), shape.kv_heads, shape.head_dim)
            self._storage.write(layer, slots, torch.randn(size), torch.randn(size))

    def case(self, num_rows: int) -> KernelCase:
        """The contest of one row count."""
        shape, end = self._shape, self._context_len + num_rows
        branch = Branch(np.arange(num_rows), np.arange(self._context_len, end), np.arange(end))
        queries = torch.empty(num_rows, shape.num_heads, shape.head_dim).normal_()
        kv_bytes = end * self._storage.bytes_per_token // self._storage.num_layers
        twin = self._twin.prepare([branch], num_rows, None)
        contestants = [
            self._contestant(NATIVE, self._native_calls(branch, queries)),
            self._contestant(TWIN, self._twin_calls(twin, queries)),
        ]
        if self._storage.dtype != torch.int8:  # torch has no attention over codes
            contestants.append(self._contestant(TORCH, self._torch_calls(queries, end)))
        return KernelCase(
            group="attention",
            kernel=f"attention {str(self._storage.dtype).removeprefix('torch.')}",
            num_rows=num_rows,
            num_bytes=kv_bytes + 2 * queries.nbytes,
            contestants=tuple(contestants),
        )

    def _contestant(self, name: str, calls: list[_Call]) -> Contestant:
        return Contestant(name, repeat(calls, Rotation(len(calls), len(calls))), len(calls))

    def _native_calls(self, branch: Branch, queries: Tensor) -> list[_Call]:
        prepared = self._native.prepare([branch], len(queries), None)
        return [
            _NativeCall(self._library, self._shape, prepared, queries, self._storage, layer)
            for layer in range(self._storage.num_layers)
        ]

    def _twin_calls(self, prepared: PreparedAttention, queries: Tensor) -> list[_Call]:
        return [
            _twin_call(prepared, layer, queries, self._storage)
            for layer in range(self._storage.num_layers)
        ]

    def _torch_calls(self, queries: Tensor, end: int) -> list[_Call]:
        """On keys that lie together; an engine's pages would have to be gathered first."""
        q = queries.to(self._storage.dtype).transpose(0, 1)[None]
        mask = torch.ones(len(queries), end, dtype=torch.bool).tril(end - len(queries))
        return [
            _torch_call(q, self._by_head(keys, end), self._by_head(values, end), mask, self._shape)
            for keys, values in zip(self._storage.keys, self._storage.values, strict=True)
        ]

    def _by_head(self, stored: Tensor, end: int) -> Tensor:
        """[slots, kv_heads, head_dim] -> [1, kv_heads, end, head_dim]"""
        return stored[:end].transpose(0, 1)[None]


class _NativeCall:
    """One call of the kernel, its arguments made beforehand."""

    def __init__(
        self,
        library: KernelLibrary,
        shape: AttentionShape,
        prepared: NativePreparedAttention,
        queries: Tensor,
        storage: KvStorage,
        layer: int,
    ) -> None:
        self._library = library
        width = shape.num_heads * shape.head_dim
        self._out = torch.empty(len(queries), width)
        self._operands = queries, storage, prepared  # the addresses below are theirs
        self._shape = struct_of(shape, storage.dtype)
        self._attention = structs.Attention(
            ctypes.pointer(self._shape),
            ctypes.pointer(prepared.plan),
            queries.data_ptr(),
            storage.keys[layer].data_ptr(),
            storage.values[layer].data_ptr(),
            self._out.data_ptr(),
            width,
            structs.TO_FLOAT32,
            *scale_addresses(storage, layer),
        )

    def __call__(self) -> None:
        self._library.functions.sl_attend(
            self._library.isa, torch.get_num_threads(), ctypes.byref(self._attention)
        )


def _twin_call(
    prepared: PreparedAttention, layer: int, queries: Tensor, storage: KvStorage
) -> _Call:
    return lambda: prepared.attend(layer, queries, storage)


def _torch_call(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: AttentionShape
) -> _Call:
    has_groups = shape.group_size > 1
    return lambda: functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, scale=shape.scale, enable_gqa=has_groups
    )
