"""A draft net's matrices in the native kernels, in the precision in which they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import OUT_STEP, PackedMatrix, StoredWeight

_WEIGHT, _BIAS = ".weight", ".bias"
_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedProducts:
    """See `Products`: rows enter in bfloat16, sums are float32; no weight is held twice.

    Matrices that read the same rows lie one below the other, so that a pass multiplies them at
    once.

    Args:
        stored: Name -> matrix, as stored; [1] and [num_out] biases by their names.
    Attributes:
        library: The kernels that multiply.
        num_bytes: Of all matrices as held.
    """

    def __init__(self, library: KernelLibrary, stored: Mapping[str, StoredWeight]) -> None:
        self.library = library
        self._matrices: dict[str, PackedMatrix] = {}
        self._joined: dict[tuple[str, ...], PackedMatrix] = {}
        self.num_bytes = 0
        names = [name.removesuffix(_WEIGHT) for name in stored if name.endswith(_WEIGHT)]
        for group in _groups(names, stored):
            parts = [stored[name + _WEIGHT] for name in group]
            biases = [stored[name + _BIAS] for name in group if name + _BIAS in stored]
            bias = (
                torch.cat([item for item in biases if isinstance(item, Tensor)]) if biases else None
            )
            packed = PackedMatrix(library, parts, bias)
            self.num_bytes += packed.nbytes
            self._joined[group] = packed
            first = 0
            for name, part in zip(group, parts, strict=True):
                whole = len(group) == 1
                num_out = part.shape[0]
                self._matrices[name] = packed if whole else packed.outputs(first, num_out)
                first += num_out

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """See `Products`."""
        matrix = self._matrices[name]
        rows = x.reshape(-1, x.shape[-1]).bfloat16()
        out = matrix.multiply(rows, torch.empty(len(rows), matrix.shape[0]))
        return out.view(*x.shape[:-1], -1)

    def rows(self, name: str, indices: Tensor) -> Tensor:
        """See `Products`."""
        found = self._matrices[name].read_rows(indices.flatten().contiguous())
        return found.view(*indices.shape, -1)

    def matrix(self, *names: str) -> PackedMatrix:
        """The matrix of this name, or those of several names one below the other.

        Raises:
            KeyError: These are not held side by side.
        """
        return self._matrices[names[0]] if len(names) == 1 else self._joined[names]


def _groups(names: Sequence[str], stored: Mapping[str, StoredWeight]) -> list[tuple[str, ...]]:
    """Names that are packed together, where their outputs fill whole tiles."""
    groups: list[tuple[str, ...]] = []
    grouped: set[str] = set()
    for name in names:
        if name in grouped:
            continue
        prefix, _, last = name.rpartition(".")
        siblings = next((group for group in _JOINED if group[0] == last), (last,))
        group = tuple(f"{prefix}.{sibling}" if prefix else sibling for sibling in siblings)
        is_whole = all(
            item + _WEIGHT in stored and stored[item + _WEIGHT].shape[0] % OUT_STEP == 0
            for item in group
        )
        groups.append(group if is_whole else (name,))
        grouped.update(groups[-1])
    return groups
