"""Tensors of a checkpoint as norms and products, their shapes checked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import Activations, PackedMatrix, StoredWeight, can_hold
from slipstream.models.layers.linear import (
    Linear,
    LinearFactory,
    NativeLinear,
    NativeProofs,
    RowProofs,
    TorchProofs,
)
from slipstream.models.layers.norm import RmsNorm
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.gguf_blocks import QuantizedTensor

log = logging.getLogger("slipstream.models")

_LEAST_BYTES = 2  # smaller floats have scales, without which they mean nothing


@dataclass(frozen=True, slots=True)
class Products:
    """How matrices are to be multiplied.

    Attributes:
        dtype: float32 or bfloat16.
        kernels: Where given, products are native, and blocks of a format that they multiply stay
            as stored.
        activations: How rows enter products with such blocks.
    """

    dtype: torch.dtype
    kernels: KernelLibrary | None = None
    activations: Activations = "bfloat16"


class WeightReader:
    """Takes tensors under their public names and checks their shapes."""

    def __init__(self, checkpoint: Checkpoint, products: Products) -> None:
        self.kernels = products.kernels
        self.dtype = products.dtype
        self.num_in_blocks = 0
        self._activations = products.activations
        self._checkpoint = checkpoint
        self._factory = LinearFactory(products.dtype)
        self._exact_factory = (
            self._factory if products.dtype == torch.float32 else LinearFactory(torch.float32)
        )
        self._matrices: list[PackedMatrix] = []
        self._widened: Counter[str] = Counter()

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._checkpoint.names()

    def proofs(self) -> RowProofs:
        """Of all products that were made."""
        if self.kernels is not None:
            return NativeProofs(self._matrices)
        return TorchProofs(*dict.fromkeys((self._factory, self._exact_factory)))

    def norm(self, name: str, size: int, eps: float, *, is_zero_centred: bool = False) -> RmsNorm:
        """The norm whose weight is `name`.weight."""
        weight = self.tensor(f"{name}.weight", size)
        return RmsNorm(weight, eps, is_zero_centred=is_zero_centred)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor that must have this shape."""
        tensor = self._checkpoint.take(name)
        require_shape(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point() or tensor.itemsize < _LEAST_BYTES:
            raise WeightsError(
                f"tensor {name} is of type {str(tensor.dtype).removeprefix('torch.')}; weights "
                "are read as float32, float16, bfloat16 or GGUF blocks",
                hint="convert the checkpoint to one of these",
            )
        return tensor

    def weight(self, name: str, *shape: int) -> StoredWeight:
        """A tensor of this shape, in blocks as stored where the kernels multiply such."""
        blocks = self._checkpoint.raw(name) if self.kernels is not None else None
        if blocks is None:
            return self.tensor(name, *shape)
        require_shape(name, blocks.shape, shape)
        if can_hold(blocks):
            self.num_in_blocks += 1
            return blocks
        self._widened[blocks.block.name] += 1
        return torch.from_numpy(blocks.dequantize())

    def matrices(self, name: str, count: int, num_out: int, num_in: int) -> Iterator[StoredWeight]:
        """Matrices of one shape that lie in one tensor, one behind the other."""
        stacked = self.weight(name, count, num_out, num_in)
        if isinstance(stacked, Tensor):
            yield from stacked.unbind()
            return
        for blocks in np.split(stacked.blocks, count):
            yield QuantizedTensor(stacked.block, (num_out, num_in), blocks)

    def warn_of_widened(self) -> None:
        """Say once which block formats cost more memory, and time, than they are stored in."""
        if self._widened:
            counts = ", ".join(f"{count} in {name}" for name, count in self._widened.items())
            log.warning(
                "matrices are held as bfloat16, 2 bytes a weight (%s), because native kernels "
                "multiply only Q8_0, Q4_0 and Q4_1 as stored; answers are those of the stored "
                "values rounded to bfloat16. For a faster model fetch one of these types, or "
                "convert with llama.cpp: llama-quantize IN.gguf OUT.gguf Q8_0",
                counts,
            )

    def linear(self, parts: Mapping[str, int], num_in: int, *, has_bias: bool = False) -> Linear:
        """One product whose output rows are those of `parts` (name -> rows) in order."""
        weights = [self.weight(f"{name}.weight", rows, num_in) for name, rows in parts.items()]
        biases = [self.tensor(f"{name}.bias", rows) for name, rows in parts.items() if has_bias]
        return self.linear_of(weights, torch.cat(biases) if biases else None)

    def linear_of(self, parts: Sequence[StoredWeight], bias: Tensor | None = None) -> Linear:
        """One product with the matrices one below the other."""
        if self.kernels is not None:
            linear = NativeLinear(self.kernels, parts, bias, self._activations)
            self._matrices.append(linear.matrix)
            return linear
        return self._factory.make(joined(parts), bias)

    def exact_linear_of(self, parts: Sequence[StoredWeight]) -> Linear:
        """As `linear_of`, from and to float32: for products that decide something."""
        if self.kernels is not None:
            linear = NativeLinear(self.kernels, parts, dtype=torch.float32)
            self._matrices.append(linear.matrix)
            return linear
        return self._exact_factory.make(joined(parts))


def joined(parts: Sequence[StoredWeight]) -> Tensor:
    """Matrices one below the other, none of them in blocks."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def require_shape(name: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        WeightsError: Names it and both shapes.
    """
    if given != wanted:
        raise WeightsError(
            f"tensor {name} has shape {list(given)}, but config.json asks for {list(wanted)}"
        )
