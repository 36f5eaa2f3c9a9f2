"""The memory behind recurrent states."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.memory import zeros_on_huge_pages


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a model's recurrent layers remember of a text.

    Attributes:
        num_layers: Recurrent layers.
        num_heads, value_dim, key_dim: A layer's state is a matrix for each head.
        num_channels, tail_len: Inputs of a layer's short convolution, and how many past ones it
            needs.
    """

    num_layers: int
    num_heads: int
    value_dim: int
    key_dim: int
    num_channels: int
    tail_len: int

    @property
    def row_size(self) -> int:
        """What one row feeds to a layer: channels, and a decay and a rate for each head."""
        return self.num_channels + 2 * self.num_heads

    def bytes_per_state(self, max_drafts: int) -> int:
        """Bytes of one state, with what is kept of the draft rows behind it."""
        matrix = self.num_heads * self.value_dim * self.key_dim
        tail = self.tail_len * self.num_channels
        drafts = max_drafts * self.row_size
        return self.num_layers * (matrix + tail + drafts) * torch.float32.itemsize

    def storage(self, num_states: int, max_drafts: int) -> StateStorage:
        """A storage of this shape."""
        return StateStorage(self, num_states, max_drafts)


class StateStorage:
    """States by id, float32; state 0 is that in front of a text and stays zero.

    Args:
        num_states: States besides the empty one.
        max_drafts: Draft rows that are kept beside each state.
    Attributes:
        matrices: By layer, [states, heads, value_dim, key_dim].
        tails: By layer, [states, tail_len, channels], the oldest row first.
        drafts: By layer, [states, max_drafts, row_size].
    """

    def __init__(self, shape: StateShape, num_states: int, max_drafts: int) -> None:
        self.shape = shape
        self.max_drafts = max_drafts
        count = num_states + 1
        sizes = (
            (count, shape.num_heads, shape.value_dim, shape.key_dim),
            (count, shape.tail_len, shape.num_channels),
            (count, max_drafts, shape.row_size),
        )
        self.matrices, self.tails, self.drafts = (
            tuple(_zeros((shape.num_layers, *size)).unbind()) for size in sizes
        )


def _zeros(shape: tuple[int, ...]) -> Tensor:
    num_bytes = max(math.prod(shape), 1) * torch.float32.itemsize
    flat = zeros_on_huge_pages(num_bytes).view(torch.float32)
    return flat[: math.prod(shape)].view(shape)
