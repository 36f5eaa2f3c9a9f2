"""Token embeddings: what the first layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.matrix import PackedMatrix


class Embedding(Protocol):
    """Rows of a table by token."""

    @property
    def nbytes(self) -> int:
        """Bytes of the table, unless another part of the model holds it."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """[rows] int64 -> [rows, hidden] float32."""


class TableEmbedding:
    """Of a plain tensor.

    Args:
        table: [vocab, hidden] in the model's dtype.
        scale: Factor, rounded to that dtype; None = 1.
    """

    def __init__(self, table: Tensor, scale: float | None) -> None:
        self._table = table if scale is None else table * torch.tensor(scale, dtype=table.dtype)
        self.nbytes = self._table.nbytes

    def __call__(self, tokens: Tensor) -> Tensor:
        """See `Embedding`."""
        return self._table.index_select(0, tokens).float()


class PackedEmbedding:
    """Of a packed matrix.

    Args:
        scale: Factor in bfloat16; None = 1.
        is_heads: The head multiplies with the same matrix and counts its bytes.
    Attributes:
        matrix, scale: As given; the scale as a tensor.
    """

    def __init__(self, matrix: PackedMatrix, scale: float | None, *, is_heads: bool) -> None:
        self.matrix = matrix
        self.scale = None if scale is None else torch.tensor(scale).bfloat16()
        self.nbytes = 0 if is_heads else matrix.nbytes

    def __call__(self, tokens: Tensor) -> Tensor:
        """See `Embedding`."""
        rows = self.matrix.read_rows(tokens)
        return rows if self.scale is None else (rows.bfloat16() * self.scale).float()


@dataclass(frozen=True, slots=True)
class PackedEnds:
    """A model's first and last matrix.

    Attributes:
        embeddings, head: [vocab, hidden]; the same one where the two are tied.
        embedding_scale: Factor on embeddings, a bfloat16 number; 0 = none.
    """

    embeddings: PackedMatrix
    head: PackedMatrix
    embedding_scale: float
