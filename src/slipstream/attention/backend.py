"""The seam between the decoder and whatever computes attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


class Rows(Protocol):
    """Rows that attend over one list of KV slots; `execution.batch.Branch` is one."""

    @property
    def rows(self) -> IntArray:
        """[n] indices into the pass's flat rows."""

    @property
    def positions(self) -> IntArray:
        """[n] position of each row, ascending."""

    @property
    def slots(self) -> IntArray:
        """[positions[-1] + 1] KV slot of each position."""


class KvReader(Protocol):
    """What attention reads; `kv.storage.KvStorage` is one."""

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `slots` [n], each [n, kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What every layer's attention has in common.

    Attributes:
        num_heads, kv_heads, head_dim: `num_heads` is a multiple of `kv_heads`.
        scale: Factor on the dot products.
    """

    num_heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.num_heads // self.kv_heads


class PreparedAttention(Protocol):
    """Attention of one pass and one window, with its index tensors made once for all layers."""

    def attend(self, layer: int, queries: Tensor, storage: KvReader) -> Tensor:
        """Attend with every row over its branch's stored keys.

        Args:
            queries: [rows, heads, head_dim] float32, after rotary embedding.
        Returns: [rows, heads * head_dim] float32. Rows in no branch hold finite rubbish.
        """


class AttentionBackend(Protocol):
    """One way of computing attention, exact in the sense of the project's row rules.

    A row at position p reads positions 0..p of its branch (or the last `window` of them). Its
    result depends on its query and the stored keys and values of those positions, bit for bit,
    and on no other row of the pass.
    """

    @property
    def name(self) -> str:
        """Short name for the numerics fingerprint."""

    def kernel(self, kv_dtype: torch.dtype) -> str:
        """What serves calls over keys and values of this dtype, such as `native-amx:bfloat16`."""

    def prove(self) -> None:
        """Find out anew what is exact, with the number of threads that torch has now.

        Raises:
            NumericsError: If nothing is.
        """

    def prepare(
        self, branches: Sequence[Rows], num_rows: int, window: int | None
    ) -> PreparedAttention:
        """Make what all layers with this window share in one pass over `num_rows` flat rows."""
