"""What lies between the products: kernels that go through rows one by one, on one thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.bench.contest import NATIVE, TORCH, TWIN, Contestant, KernelCase, Rotation, repeat
from slipstream.bench.kernel_products import pack, random_weight
from slipstream.kernels import structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kv.storage import KvStorage
from slipstream.models.hparams import Hparams
from slipstream.models.layers.activation import ACTIVATIONS, gated_activation
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable
from slipstream.models.layers.rotary import Rotation as RotaryAngles

NUM_CALLS = 50
GROUP = "rows, one thread"
_Call = Callable[[], object]


class RowCases:
    """Cases of the kernels by row; their rows are in the cache, as another kernel left them.

    A native call from Python costs about as much as a row: calls over no rows are timed as well and
    taken off.
    """

    def __init__(self, library: KernelLibrary, hparams: Hparams) -> None:
        self._library = library
        self._hparams = hparams
        self._embeddings: dict[str, PackedMatrix] = {}

    def cases(self, num_rows: int) -> Iterator[KernelCase]:
        """All kernels at one row count."""
        yield self._normalise(num_rows)
        yield self._rotate(num_rows)
        yield self._gate(num_rows)

    def embedding(self, num_rows: int, format_name: str) -> KernelCase:
        """Rows of the table of tokens, other ones in every call."""
        vocab, hidden = self._hparams.vocab_size, self._hparams.hidden_size
        if format_name not in self._embeddings:
            stored = random_weight(format_name, (vocab, hidden))
            self._embeddings[format_name] = pack(self._library, format_name, stored)
        table = self._embeddings[format_name]
        plain = torch.empty(vocab, hidden, dtype=torch.bfloat16).normal_()
        tokens = [torch.randint(vocab, (num_rows,)) for _ in range(NUM_CALLS)]
        row_bytes = table.nbytes // vocab + 4 * hidden
        return KernelCase(
            GROUP,
            f"embedding {format_name}",
            num_rows,
            num_rows * row_bytes,
            (
                _contestant(NATIVE, [partial(table.read_rows, rows) for rows in tokens]),
                _contestant(TWIN, [partial(_gather, plain, rows) for rows in tokens]),
                _contestant(TORCH, [partial(functional.embedding, rows, plain) for rows in tokens]),
            ),
        )

    def _normalise(self, num_rows: int) -> KernelCase:
        size, eps = self._hparams.hidden_size, self._hparams.norm_eps
        x, weight = torch.empty(num_rows, size).normal_(), torch.ones(size)
        out = torch.empty(num_rows, size, dtype=torch.bfloat16)
        norm, twin = (
            structs.Norm(weight.data_ptr(), eps, size),
            RmsNorm(weight, eps, is_zero_centred=False),
        )
        native = partial(
            self._library.functions.sl_normalise,
            self._library.isa,
            ctypes.byref(norm),
            _address(x),
            _address(out),
        )
        return KernelCase(
            GROUP,
            f"norm {size}",
            num_rows,
            x.nbytes + out.nbytes,
            (
                _native(native, num_rows, (x, weight, out, norm)),
                _contestant(TWIN, [lambda: twin(x).bfloat16()]),
                _contestant(
                    TORCH, [lambda: functional.rms_norm(x, (size,), weight, eps).bfloat16()]
                ),
            ),
        )

    def _rotate(self, num_rows: int) -> KernelCase:
        hparams = self._hparams
        heads, kv_heads, dim = hparams.num_heads, hparams.kv_heads, hparams.head_dim
        qkv = torch.empty(num_rows, (heads + 2 * kv_heads) * dim).normal_()
        table = RotaryTable(hparams.layers[0].rotary, dim)
        positions = torch.arange(num_rows)
        cos, sin = table.tables(num_rows)
        storage = KvStorage(num_rows, 1, kv_heads, dim, torch.bfloat16)
        projection = structs.Projection(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr() + 4 * (dim // 2),
            positions.data_ptr(),
            positions.data_ptr(),
            storage.keys[0].data_ptr(),
            storage.values[0].data_ptr(),
        )
        shape = structs.AttentionShape(heads, kv_heads, dim, structs.KV_BFLOAT16, 1.0)
        native = partial(
            self._library.functions.sl_rotate_and_store,
            self._library.isa,
            ctypes.byref(projection),
            ctypes.byref(shape),
        )
        rotation = RotaryAngles(*table.angles(positions, num_rows))

        def twin() -> None:
            by_head = qkv.view(num_rows, -1, dim)
            rotated = rotation.apply(by_head[:, : heads + kv_heads])
            storage.write(0, positions, rotated[:, heads:], by_head[:, heads + kv_heads :])

        return KernelCase(
            GROUP,
            f"rotary, store {heads}+{kv_heads}x{dim}",
            num_rows,
            qkv.nbytes + 4 * num_rows * heads * dim + num_rows * storage.bytes_per_token,
            (
                _native(native, num_rows, (qkv, cos, sin, positions, storage, projection, shape)),
                _contestant(TWIN, [twin]),
            ),
        )

    def _gate(self, num_rows: int) -> KernelCase:
        size, kind = self._hparams.intermediate_size, self._hparams.activation
        gate_up = torch.empty(num_rows, 2 * size).normal_()
        out = torch.empty(num_rows, size, dtype=torch.bfloat16)
        rounded, twin = gate_up.bfloat16(), gated_activation(kind, torch.bfloat16)
        act = ACTIVATIONS[kind]
        gate, up = rounded.chunk(2, -1)
        functions, isa = self._library.functions, self._library.isa

        def native(count: int) -> None:
            functions.sl_gate(
                isa, structs.GATES[kind], _address(gate_up), _address(out), size, count
            )

        return KernelCase(
            GROUP,
            f"gate {size}",
            num_rows,
            gate_up.nbytes + out.nbytes,
            (
                _native(native, num_rows, (gate_up, out)),
                _contestant(TWIN, [lambda: twin(rounded)]),
                _contestant(TORCH, [lambda: act(gate) * up]),
            ),
        )


def _native(call: Callable[[int], object], num_rows: int, operands: object) -> Contestant:
    """Calls over the rows, and over none; `operands` live as long as they do."""

    def run(count: int) -> None:
        assert operands is not None
        for _ in range(NUM_CALLS):
            call(count)

    return Contestant(NATIVE, partial(run, num_rows), NUM_CALLS, partial(run, 0))


def _contestant(name: str, calls: list[_Call]) -> Contestant:
    calls = calls if len(calls) > 1 else calls * NUM_CALLS
    return Contestant(name, repeat(calls, Rotation(len(calls), len(calls))), len(calls))


def _gather(table: Tensor, rows: Tensor) -> Tensor:
    return table.index_select(0, rows).float()


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
