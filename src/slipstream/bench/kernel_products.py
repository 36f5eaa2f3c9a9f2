"""Products of a model's shapes in every format, on weights that are not in the cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.bench.contest import NATIVE, TORCH, TWIN, Contestant, KernelCase, Rotation, repeat
from slipstream.execution.row_tiles import RowTiles
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import Activations, PackedMatrix, StoredWeight
from slipstream.kernels.structs import FORMATS, TO_FLOAT32, Product
from slipstream.models.hparams import Hparams
from slipstream.models.layers.linear import Linear, LinearFactory
from slipstream.weights.gguf_blocks import BLOCK_FORMATS, QuantizedTensor

CALLS_AT_ONCE = 30
_BLOCKS = {block.name: block for block in BLOCK_FORMATS.values()}
_SCALE_BYTES = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4}


@dataclass(frozen=True, slots=True)
class Shapes:
    """A model's matrices: name -> (outputs, inputs), and how many layers have them.

    The head is there once; so it is in a step.
    """

    of_layer: Mapping[str, tuple[int, int]]
    head: tuple[int, int]
    num_layers: int

    def items(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """All shapes by name."""
        yield from self.of_layer.items()
        yield "head", self.head

    def step_bytes(self, library: KernelLibrary, format_name: str) -> int:
        """Bytes of all matrices of a step in one format, as packed."""
        of_layer = sum(
            packed_bytes(library, format_name, *shape) for shape in self.of_layer.values()
        )
        return self.num_layers * of_layer + packed_bytes(library, format_name, *self.head)


def shapes_of(hparams: Hparams) -> Shapes:
    """The matrices of a model."""
    hidden, intermediate = hparams.hidden_size, hparams.intermediate_size
    return Shapes(
        of_layer={
            "qkv": (hparams.q_size + 2 * hparams.kv_size, hidden),
            "attention_output": (hidden, hparams.q_size),
            "gate_up": (2 * intermediate, hidden),
            "down": (hidden, intermediate),
        },
        head=(hparams.vocab_size, hidden),
        num_layers=hparams.num_layers,
    )


def stored_format(format_name: str) -> str:
    """How weights are stored: "Q4_1" of "Q4_1:int8"."""
    return format_name.partition(":")[0]


def pack(library: KernelLibrary, format_name: str, stored: StoredWeight) -> PackedMatrix:
    """A matrix that takes rows as the name says: `:int8` in 8 bit, else bfloat16."""
    activations: Activations = "int8" if format_name.endswith(":int8") else "bfloat16"
    return PackedMatrix(library, [stored], activations=activations)


def packed_bytes(library: KernelLibrary, format_name: str, num_out: int, num_in: int) -> int:
    """Bytes of a packed matrix."""
    return int(
        library.functions.sl_packed_bytes(FORMATS[stored_format(format_name)], num_out, num_in)
    )


def fits(format_name: str, num_in: int) -> bool:
    """Whether rows of so many inputs can be stored in this format: whole blocks only."""
    return num_in % _BLOCKS[stored_format(format_name)].num_values == 0


class ProductCases:
    """Cases of one shape in one format, by row count; holds its copies as long as it lives.

    Native and torch go round copies of at least `rotation_bytes` each: that of a step's weights, so
    that a copy is read again when as much else has been read as in a step.

    Args:
        num_calls: Copies that one timed run goes through at most.
    """

    def __init__(
        self,
        library: KernelLibrary,
        factory: LinearFactory,
        format_name: str,
        name: str,
        shape: tuple[int, int],
        *,
        rotation_bytes: int,
    ) -> None:
        self._library = library
        self._factory = factory
        self._labels = (f"products {format_name}", f"{name} {shape[0]}x{shape[1]}")
        self._shape = shape
        stored = random_weight(format_name, shape)
        first = pack(library, format_name, stored)
        self.num_copies = max(-(-rotation_bytes // first.nbytes), 2)
        others = (pack(library, format_name, stored) for _ in range(self.num_copies - 1))
        self._matrices = [first, *others]
        weight = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
        self._num_torch = max(-(-rotation_bytes // weight.nbytes), 2)
        self._weights = [weight.clone() for _ in range(self._num_torch)]
        self._twins = [factory.make(weight) for _ in range(self._num_torch)]

    def case(self, num_rows: int) -> KernelCase:
        """The contest of one row count."""
        num_out, num_in = self._shape
        x = torch.empty(num_rows, num_in, dtype=torch.bfloat16).normal_()
        out = torch.empty(num_rows, num_out)
        group, kernel = self._labels
        return KernelCase(
            group=group,
            kernel=kernel,
            num_rows=num_rows,
            num_bytes=self._matrices[0].nbytes + x.nbytes + out.nbytes,
            contestants=(self._native(x, out), self._twin(x), self._torch(x)),
        )

    def _native(self, x: Tensor, out: Tensor) -> Contestant:
        run = _NativeRun(self._library, self._matrices, x, out)
        return Contestant(NATIVE, run, run.rotation.at_once)

    def _twin(self, x: Tensor) -> Contestant:
        """As a pass in torch does: the rows cut and padded to counts that are exact."""
        cuts = RowTiles(self._factory.admitted(self._twins[:1])).cover(len(x))
        padded = torch.cat((x, x.new_zeros(sum(cuts) - len(x), x.shape[1])))
        parts = padded.split_with_sizes(list(cuts))
        calls = [_cut_call(twin, parts) for twin in self._twins]
        rotation = Rotation(self._num_torch, CALLS_AT_ONCE)
        return Contestant(TWIN, repeat(calls, rotation), rotation.at_once)

    def _torch(self, x: Tensor) -> Contestant:
        calls = [_linear_call(x, weight) for weight in self._weights]
        rotation = Rotation(self._num_torch, CALLS_AT_ONCE)
        return Contestant(TORCH, repeat(calls, rotation), rotation.at_once)


class _NativeRun:
    """All products of a run in one call, as in a pass: no Python between them."""

    def __init__(
        self, library: KernelLibrary, matrices: Sequence[PackedMatrix], x: Tensor, out: Tensor
    ) -> None:
        self.rotation = Rotation(len(matrices), CALLS_AT_ONCE)
        self._library = library
        self._operands = matrices, x, out  # the addresses below are theirs
        self._products = (Product * len(matrices))()
        for product, matrix in zip(self._products, matrices, strict=True):
            product.matrix = matrix.matrices[0]
            product.x, product.x_stride = x.data_ptr(), x.stride(0)
            product.out, product.out_stride = out.data_ptr(), out.stride(0)
            product.num_rows, product.store = len(x), TO_FLOAT32

    def __call__(self) -> None:
        first = ctypes.byref(self._products, ctypes.sizeof(Product) * self.rotation.turn())
        self._library.functions.sl_linear(
            self._library.isa, torch.get_num_threads(), first, self.rotation.at_once
        )


def random_weight(format_name: str, shape: tuple[int, int]) -> StoredWeight:
    """A matrix of harmless values in a format: neither huge nor subnormal."""
    format_name = stored_format(format_name)
    if format_name == "BF16":
        return torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
    block = _BLOCKS[format_name]
    rng = np.random.default_rng(0)
    num_blocks = shape[0] * shape[1] // block.num_values
    blocks = rng.integers(0, 256, (num_blocks, block.num_bytes), dtype=np.uint8)
    scales = np.full((num_blocks, _SCALE_BYTES[format_name] // 2), 0.01, np.float16)
    blocks[:, : _SCALE_BYTES[format_name]] = scales.view(np.uint8)
    return QuantizedTensor(block, shape, blocks)


def _cut_call(linear: Linear, parts: Sequence[Tensor]) -> Callable[[], object]:
    return lambda: [linear(part) for part in parts]


def _linear_call(x: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: torch.nn.functional.linear(x, weight)
