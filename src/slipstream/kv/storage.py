"""The memory behind a KV cache: one key and one value tensor per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.kernels.memory import zeros_on_huge_pages
from slipstream.kv.state_storage import StateStorage


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a model keeps of each token.

    Attributes:
        num_layers: Layers that keep anything.
        has_values: False where keys are the values too, so that only keys are kept.
    """

    num_layers: int
    kv_heads: int
    head_dim: int
    has_values: bool = True

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one token's keys and values over all layers, scales included."""
        head_bytes = self.head_dim * dtype.itemsize
        if dtype == torch.int8:
            head_bytes += torch.float32.itemsize
        return (2 if self.has_values else 1) * self.num_layers * self.kv_heads * head_bytes

    def storage(self, num_slots: int, dtype: torch.dtype) -> KvStorage:
        """A storage of this shape."""
        return KvStorage(
            num_slots,
            self.num_layers,
            self.kv_heads,
            self.head_dim,
            dtype,
            has_values=self.has_values,
        )


class KvStorage:
    """Keys and values of every layer by slot, stored as attention reads them.

    Everything starts as zero, so a row that attention masks out by a zero weight adds exact zeros
    even where it was never written. Untouched memory costs nothing until it is written. Whoever
    computes keys and values hands them over in any float dtype; what is read back is the stored,
    rounded one. Attention reads through `gather` or `keys` and `values`. In int8 each token's key
    and value of a head are codes of -127 to 127 with one scale, from that token's row alone.
    Values are finite: of a head whose value is not, zeros are kept and a key of NaN, which makes
    NaN of the rows that see it and is hidden from the others.

    Args:
        num_slots: `KvCache.num_slots`; the first page is scratch, for rows that only pad.
        num_layers, kv_heads, head_dim: Shape of the model's attention.
        dtype: float32, bfloat16 or int8 (float16 works where the device has it).
        has_values: False where keys are the values too; they are then kept once.
        device: Where the memory lies.
    Attributes:
        keys, values: By layer, [slots, kv_heads, head_dim]; views of one block, a slot's keys and
            values side by side.
        key_scales, value_scales: By layer, [slots, kv_heads] float32; empty unless in int8.
        states: Of the model's recurrent layers, where it has such; whoever builds sets it.
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        has_values: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_slots = num_slots
        self.num_layers = num_layers
        self.dtype = dtype
        self.device = torch.device(device)
        # One block for all layers: copying a row everywhere is then two calls, not four per layer.
        # A slot's keys and values lie together (`slot_stride` in attention.hpp): reading pages
        # that lie anywhere then takes half as many jumps.
        num_kinds = 2 if has_values else 1
        self._rows = _zeros(
            (num_layers, num_slots, num_kinds, kv_heads, head_dim), dtype=dtype, device=self.device
        )
        self.keys: tuple[Tensor, ...] = self._rows[:, :, 0].unbind()
        self.values: tuple[Tensor, ...] = self._rows[:, :, -1].unbind()
        self.key_scales: tuple[Tensor, ...] = ()
        self.value_scales: tuple[Tensor, ...] = ()
        self._copied = [self._rows]
        self.states: StateStorage | None = None
        if dtype == torch.int8:
            scale_shape = (num_kinds * num_layers, num_slots, kv_heads)
            scales = _zeros(scale_shape, dtype=torch.float32, device=self.device)
            self.key_scales = scales[:num_layers].unbind()
            self.value_scales = scales[-num_layers:].unbind()
            self._copied.append(scales)
        shape = KvShape(num_layers, kv_heads, head_dim, has_values)
        self.has_values = has_values
        self.bytes_per_token = shape.bytes_per_token(dtype)

    def write(
        self,
        layer: int,
        slots: Tensor,  # [tokens] int64, without repeats outside the scratch page
        keys: Tensor,  # [tokens, kv_heads, head_dim]
        values: Tensor | None,  # [tokens, kv_heads, head_dim]; None where keys are the values
    ) -> None:
        """Store the rows of one layer, rounded to `dtype`."""
        assert (values is not None) == self.has_values
        mixed = keys if values is None else values
        stored = mixed if self.dtype == torch.int8 else mixed.to(self.dtype)
        is_finite = stored.isfinite().all(-1, keepdim=True)
        keys = torch.where(is_finite, keys, torch.nan)
        if self.dtype == torch.int8:
            keys, key_scales = _codes(keys)
            self.key_scales[layer].index_copy_(0, slots, key_scales)
        self.keys[layer].index_copy_(0, slots, keys.to(self.dtype))
        if values is None:
            return
        values = torch.where(is_finite, values, 0)
        if self.dtype == torch.int8:
            values, value_scales = _codes(values)
            self.value_scales[layer].index_copy_(0, slots, value_scales)
        self.values[layer].index_copy_(0, slots, values.to(self.dtype))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `slots` ([n] int64) in that order, each [n, kv_heads, head_dim].

        Of `dtype`, or float32 where that is int8.
        """
        keys = _selected(self.keys, self.key_scales, layer, slots)
        if not self.has_values:
            return keys, keys.nan_to_num()
        return keys, _selected(self.values, self.value_scales, layer, slots)

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
        for tensor in self._copied:
            tensor.index_copy_(1, to_slots, tensor.index_select(1, from_slots))


def _selected(
    rows: Sequence[Tensor], scales: Sequence[Tensor], layer: int, slots: Tensor
) -> Tensor:
    """Numbers of some slots of a layer; `scales` are those of codes, or empty."""
    selected = rows[layer].index_select(0, slots)
    if not scales:
        return selected
    return selected * scales[layer].index_select(0, slots).unsqueeze(-1)


def _codes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, kv_heads, head_dim] -> int8 codes and their [tokens, kv_heads] float32 scales.

    The scale takes a head's greatest number to 127. The twin of `keep_codes` in pointwise.cpp.
    """
    rows = rows.float()
    scales = rows.abs().amax(-1) / 127
    divisors = torch.where(scales > 0, scales, 1).unsqueeze(-1)
    codes = torch.where(scales.unsqueeze(-1) > 0, rows / divisors, 0)
    return codes.round().clamp(-127, 127).to(torch.int8), scales


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of which only touched pages occupy memory; `torch.zeros` would write all of them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeros_on_huge_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
