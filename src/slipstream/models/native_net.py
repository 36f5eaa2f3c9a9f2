"""What all nets that draft in native calls have in common."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels import draft_structs, structs
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.storage import KvStorage
from slipstream.models.layers.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class NetRoom:
    """Where a net's rows lie, and what it may draft.

    Attributes:
        storage: Its keys and values.
        first_spare_slot: Where slots for rows begin that are not committed.
        seat_slots: How many of them a request has.
        num_drawable: Target tokens from here on cannot be drawn.
        rules: How much is drafted.
    """

    storage: KvStorage
    first_spare_slot: int
    seat_slots: int
    num_drawable: int
    rules: draft_structs.DraftRules


class NativeNet:
    """A net as C sees it; a subclass makes the structure and holds the memory that it points to.

    Args:
        layers: Of the structure, filled but for their angles.
        tables: Angles of each layer.
    Attributes:
        struct: The structure.
    """

    struct: draft_structs.DraftNet

    def __init__(
        self,
        library: KernelLibrary,
        layers: ctypes.Array[structs.Layer],
        tables: Sequence[RotaryTable],
        head_dim: int,
    ) -> None:
        self._library = library
        self._layers = layers
        self._tables = tables
        self._sine_offset = head_dim // 2 * torch.float32.itemsize
        self._num_positions = 0
        self._angles: list[Tensor] = []

    @property
    def functions(self) -> ctypes.CDLL:
        """The kernels' functions."""
        return self._library.functions

    def arguments(self) -> tuple[int, int, object]:
        """What every call begins with: instruction set, threads, the net."""
        return self._library.isa, torch.get_num_threads(), ctypes.byref(self.struct)

    def cover(self, num_positions: int) -> None:
        """Have angles for positions below this."""
        if num_positions <= self._num_positions:
            return
        lens = []
        self._angles.clear()
        for layer, table in zip(self._layers, self._tables, strict=True):
            cos, sin = table.tables(num_positions - 1)
            # Held: a draft in torch may have the table grow, which then keeps other tensors.
            self._angles += (cos, sin)
            layer.cosines = cos.data_ptr()
            layer.sines = sin.data_ptr() + self._sine_offset  # a table's first half is negated
            lens.append(len(cos))
        self._num_positions = min(lens)
