"""The memory behind a KV cache: one key and one value tensor per layer."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.kernels.memory import zeros_on_huge_pages


class KvStorage:
    """Keys and values of every layer by slot, stored as attention reads them.

    Everything starts as zero, so a row that attention masks out by a zero weight adds exact zeros
    even where it was never written. Untouched memory costs nothing until it is written. Whoever
    computes keys and values hands them over in any float dtype; what is read back is the stored,
    rounded one. Attention reads through `gather` or, for these dtypes, `keys` and `values`; an
    8-bit storage would scale in `gather`.

    Args:
        num_slots: `KvCache.num_slots`; the first page is scratch, for rows that only pad.
        num_layers, kv_heads, head_dim: Shape of the model's attention.
        dtype: float32 or bfloat16 (float16 works where the device has it).
        device: Where the memory lies.
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_slots = num_slots
        self.num_layers = num_layers
        self.dtype = dtype
        self.device = torch.device(device)
        # One block for all layers: copying a row everywhere is then two calls, not four per layer.
        self._rows = _zeros(
            (2 * num_layers, num_slots, kv_heads, head_dim), dtype=dtype, device=self.device
        )
        self.keys: tuple[Tensor, ...] = self._rows[:num_layers].unbind()
        self.values: tuple[Tensor, ...] = self._rows[num_layers:].unbind()
        self.bytes_per_token = 2 * num_layers * kv_heads * head_dim * dtype.itemsize

    def write(
        self,
        layer: int,
        slots: Tensor,  # [tokens] int64, without repeats outside the scratch page
        keys: Tensor,  # [tokens, kv_heads, head_dim]
        values: Tensor,  # [tokens, kv_heads, head_dim]
    ) -> None:
        """Store the rows of one layer, rounded to `dtype`."""
        self.keys[layer].index_copy_(0, slots, keys.to(self.dtype))
        self.values[layer].index_copy_(0, slots, values.to(self.dtype))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `slots` ([n] int64) in that order, each [n, kv_heads, head_dim]."""
        return self.keys[layer].index_select(0, slots), self.values[layer].index_select(0, slots)

    def copy(self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> None:
        """Copy rows from slot to slot in all layers, bit for bit, as `Lease.compact` asks.

        All sources are read before a target is written.

        Args:
            sources, targets: [moves] int64 slots.
        """
        if len(sources) == 0:
            return
        from_slots = torch.from_numpy(sources).to(self.device)
        to_slots = torch.from_numpy(targets).to(self.device)
        self._rows.index_copy_(1, to_slots, self._rows.index_select(1, from_slots))


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of which only touched pages occupy memory; `torch.zeros` would write all of them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeros_on_huge_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
