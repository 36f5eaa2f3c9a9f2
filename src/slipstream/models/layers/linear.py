"""Matrix products, called only with row counts that are proved to share one reduction order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.row_proof import (
    ROW_COUNTS,
    admitted_row_counts,
    cancelling_operands,
)
from slipstream.errors import NumericsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import Activations, PackedMatrix, StoredWeight

_PACKING_ROWS = 1  # the layout for one row keeps one order up to the most rows
_WIDE = 8192  # outputs: a vocabulary; proving many rows of it costs much and serves nobody


class Linear(Protocol):
    """y = x W^T + b for an admitted number of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """(num_out, num_in)."""

    @property
    def dtype(self) -> torch.dtype:
        """Of inputs and outputs."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as held."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """What serves each product that one call makes, such as `native-amx:Q4_1`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply [rows, num_in] to [rows, num_out] in the same dtype."""


class MatrixLinear:
    """`torch.mm` on the transposed weight.

    Args:
        weight: [num_out, num_in]; bias: [num_out] or None, both in the dtype of the inputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.t().contiguous()
        self._bias = bias
        self.shape = (weight.shape[0], weight.shape[1])
        self.dtype = weight.dtype
        self.nbytes = weight.nbytes
        self.kernels = (f"torch-mm:{_name(weight.dtype)}",)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        y = torch.mm(x, self._weight)
        return y if self._bias is None else y.add_(self._bias)


class PackedLinear:
    """oneDNN's product on a weight packed once; fast for bfloat16. See `MatrixLinear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKING_ROWS)
        self._bias = bias
        self.shape = (weight.shape[0], weight.shape[1])
        self.dtype = weight.dtype
        self.nbytes = weight.nbytes
        self.kernels = (f"torch-packed:{_name(weight.dtype)}",)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self._product(x, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]  # an untyped op


class NativeLinear:
    """A product of the native kernels, exact for every number of rows.

    Args:
        parts: bfloat16 tensors or blocks as stored, one below the other; bias: [num_out] or None.
        activations: How rows enter products with blocks.
        dtype: Of inputs and outputs; float32 inputs are rounded to bfloat16, outputs are not.
    """

    def __init__(
        self,
        library: KernelLibrary,
        parts: Sequence[StoredWeight],
        bias: Tensor | None = None,
        activations: Activations = "bfloat16",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.dtype = dtype
        self.matrix = PackedMatrix(library, parts, bias, activations)
        self.shape = self.matrix.shape
        self.nbytes = self.matrix.nbytes
        self.kernels = tuple(
            f"native-{library.isa_name}{'-int8' if inputs == 'int8' else ''}:{name}"
            for name, inputs in zip(self.matrix.formats, self.matrix.activations, strict=True)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self.matrix.multiply(x.bfloat16(), x.new_empty(len(x), self.shape[0]))


LinearKind = Callable[[Tensor, Tensor | None], Linear]


class LinearFactory:
    """Makes `Linear`s of one dtype, by the first way of multiplying that is exact here.

    Proofs are kept by shape, so that a model of many equal layers pays for a few.

    Args:
        dtype: float32 or bfloat16, of weights and inputs.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._proofs: dict[tuple[str, int, int, int], frozenset[int]] = {}
        self._kinds: dict[tuple[int, int], str] = {}
        self._makers = _makers(dtype)

    def make(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A product with `weight` [num_out, num_in] and `bias` [num_out] or None.

        Raises:
            NumericsError: If no way of multiplying is exact for this shape.
        """
        num_out, num_in = weight.shape
        kind = self._kind(num_out, num_in)
        held_bias = None if bias is None else bias.to(self.dtype)
        return self._makers[kind](weight.to(self.dtype), held_bias)

    def admitted(self, linears: Iterable[Linear]) -> tuple[int, ...]:
        """Row counts, ascending, that are exact for all `linears` with torch's threads now.

        Raises:
            NumericsError: If a product is no longer exact with this number of threads.
        """
        counts = frozenset(ROW_COUNTS)
        for num_out, num_in in {linear.shape for linear in linears}:
            proof = self._proof(self._kinds[num_out, num_in], num_out, num_in)
            if not proof:
                raise self._refusal(num_out, num_in)
            counts &= proof
        return tuple(sorted(counts))

    def description(self) -> str:
        """The ways of multiplying in use, for the numerics fingerprint."""
        return "+".join(sorted(set(self._kinds.values())))

    def _kind(self, num_out: int, num_in: int) -> str:
        shape = (num_out, num_in)
        if shape not in self._kinds:
            exact = (kind for kind in self._makers if self._proof(kind, num_out, num_in))
            kind = next(exact, None)
            if kind is None:
                raise self._refusal(num_out, num_in)
            self._kinds[shape] = kind
        return self._kinds[shape]

    def _proof(self, kind: str, num_out: int, num_in: int) -> frozenset[int]:
        key = (kind, num_out, num_in, torch.get_num_threads())
        if key not in self._proofs:
            counts = [count for count in ROW_COUNTS if count <= 64 or num_out < _WIDE]
            x, weight = cancelling_operands(max(counts), num_in, num_out, seed=num_in)
            linear = self._makers[kind](weight.to(self.dtype), None)
            self._proofs[key] = admitted_row_counts(linear, x.to(self.dtype), counts)
        return self._proofs[key]

    def _refusal(self, num_out: int, num_in: int) -> NumericsError:
        return NumericsError(
            f"no product of {num_in} inputs and {num_out} outputs in {self.dtype} gives a row the "
            f"same bits in every place and with every number of threads (tried "
            f"{', '.join(self._makers)} with torch {torch.__version__} on "
            f"{torch.backends.cpu.get_cpu_capability()})",
            hint='set model.dtype to "float32", or use an official torch build',
        )


class RowProofs(Protocol):
    """What is known of a decoder's products."""

    def admitted(self, linears: Iterable[Linear]) -> tuple[int, ...] | None:
        """Row counts that are exact for all `linears` with torch's threads now; None = all.

        Raises:
            NumericsError: If a product is no longer exact with this number of threads.
        """

    def description(self) -> str:
        """The ways of multiplying in use, for the numerics fingerprint."""


class TorchProofs:
    """Of products that factories made, one of each dtype."""

    def __init__(self, *factories: LinearFactory) -> None:
        self._factories = factories

    def admitted(self, linears: Iterable[Linear]) -> tuple[int, ...]:
        """See `RowProofs`."""
        linears = tuple(linears)
        counts = frozenset(ROW_COUNTS)
        for factory in self._factories:
            counts &= set(factory.admitted(item for item in linears if item.dtype == factory.dtype))
        return tuple(sorted(counts))

    def description(self) -> str:
        """See `RowProofs`."""
        kinds = (factory.description() for factory in self._factories)
        return ", ".join(kind for kind in kinds if kind)


class NativeProofs:
    """Of native products, which are exact for all row counts."""

    def __init__(self, matrices: Iterable[PackedMatrix]) -> None:
        self._description = native_description(matrices)

    def admitted(self, linears: Iterable[Linear]) -> None:
        """All: see `RowProofs`."""

    def description(self) -> str:
        """See `RowProofs`."""
        return self._description


def native_description(matrices: Iterable[PackedMatrix]) -> str:
    """What native products take; the instruction set is no part of it: all give the same bits."""
    pairs = {
        pair for matrix in matrices for pair in zip(matrix.activations, matrix.formats, strict=True)
    }
    kinds: dict[str, list[str]] = {}
    for activations, name in sorted(pairs):
        kind = "native" if activations == "bfloat16" else f"native-{activations}"
        kinds.setdefault(kind, []).append(name)
    return ", ".join(f"{kind}:{'+'.join(names)}" for kind, names in kinds.items())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _makers(dtype: torch.dtype) -> dict[str, LinearKind]:
    packs = torch._C._has_mkldnn and (
        dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    if not packs:
        return {"mm": MatrixLinear}
    if dtype == torch.bfloat16:
        return {"packed": PackedLinear, "mm": MatrixLinear}
    return {"mm": MatrixLinear, "packed": PackedLinear}
