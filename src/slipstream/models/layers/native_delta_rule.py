"""The gated delta rule in the native kernel; `delta_rule.py` is its twin."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.kernels import structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.states import StateSpan
from slipstream.models.layers.delta_rule import DeltaRows

_KEY_DIMS = (16, 32, 64, 128, 256)


class NativeDeltaRule:
    """See `DeltaRule`: each head of a sequence is computed by one thread, row by row."""

    name = "native"

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library

    def __call__(
        self, rows: DeltaRows, firsts: Sequence[int], spans: Sequence[StateSpan], matrices: Tensor
    ) -> Tensor:
        """See `DeltaRule`."""
        held = [x.contiguous() for x in (rows.queries, rows.keys, rows.values)]
        held += [rows.decays.contiguous(), rows.rates.contiguous()]
        outputs = torch.empty_like(held[2])
        snapshots = [item for span in spans for item in span.snapshots]
        span_structs = (structs.DeltaSpan * len(spans))()
        snapshot_structs = (structs.DeltaSnapshot * len(snapshots))(
            *(structs.DeltaSnapshot(*item) for item in snapshots)
        )
        num_before = 0
        for struct, first, span in zip(span_structs, firsts, spans, strict=True):
            struct.first = first
            struct.num_taken = span.num_kept + span.num_known
            struct.num_rows = span.num_kept + span.num_rows
            struct.source, struct.target = span.source, span.target
            struct.first_snapshot, struct.num_snapshots = num_before, len(span.snapshots)
            num_before += len(span.snapshots)
        _, num_heads, value_dim, key_dim = matrices.shape
        delta = structs.Delta(
            *(x.data_ptr() for x in (*held, outputs, matrices)),
            ctypes.addressof(span_structs),
            ctypes.addressof(snapshot_structs),
            len(spans),
            num_heads,
            value_dim,
            key_dim,
        )
        self._library.functions.sl_delta(
            self._library.isa, torch.get_num_threads(), ctypes.byref(delta)
        )
        return outputs


def fits(key_dim: int) -> bool:
    """Whether the kernel computes keys of this size."""
    return key_dim in _KEY_DIMS
