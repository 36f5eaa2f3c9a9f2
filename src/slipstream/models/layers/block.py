"""What a decoder layer is made of: a mixer of rows, a feed-forward part, norms around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.backend import PreparedAttention
from slipstream.kv.states import StateSpan
from slipstream.kv.storage import KvStorage
from slipstream.models.hparams import RotaryParams
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import Rotation


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What all layers share in one pass.

    Attributes:
        dtype: Of the products.
        cuts: Row counts, each admitted, by which the pass's rows are multiplied.
        cover: Admitted row counts for any other number of rows; their sum may exceed it.
        slots: [rows] int64 slot of each row's key and value.
        attention: Prepared attention by window.
        rotations: Angles of the rows.
        spans: Rows of each sequence, for recurrent layers.
    """

    dtype: torch.dtype
    cuts: Sequence[int]
    cover: Callable[[int], Sequence[int]]
    slots: Tensor
    attention: Mapping[int | None, PreparedAttention]
    rotations: Mapping[RotaryParams, Rotation]
    storage: KvStorage
    spans: Sequence[StateSpan] = ()

    def multiply(self, linear: Linear, x: Tensor) -> Tensor:
        """A product over all rows of the pass, by its cuts: [rows, num_in] -> [rows, num_out]."""
        if len(self.cuts) == 1:
            return linear(x)
        return torch.cat([linear(part) for part in x.split_with_sizes(list(self.cuts))])


class Part(Protocol):
    """Half of a layer; a row's output depends on its own history alone."""

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """What is added to the residual stream: [rows, hidden] float32 -> [rows, hidden]."""

    def linears(self) -> tuple[Linear, ...]:
        """Its matrix products."""

    def norms(self) -> tuple[RmsNorm, ...]:
        """Its norms."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; a norm that the family lacks is None."""

    input_norm: RmsNorm
    mixer: Part
    mixer_output_norm: RmsNorm | None
    mlp_norm: RmsNorm
    mlp: Part
    mlp_output_norm: RmsNorm | None

    def __call__(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """The residual stream behind the layer: [rows, hidden] float32, both ways."""
        output = self.mixer(self.input_norm(hidden), context)
        if self.mixer_output_norm is not None:
            output = self.mixer_output_norm(output)
        hidden = hidden + output
        output = self.mlp(self.mlp_norm(hidden), context)
        if self.mlp_output_norm is not None:
            output = self.mlp_output_norm(output)
        return hidden.add_(output)

    def linears(self) -> tuple[Linear, ...]:
        """The layer's matrix products."""
        return (*self.mixer.linears(), *self.mlp.linears())

    def norms(self) -> tuple[RmsNorm, ...]:
        """The layer's norms."""
        own = (self.input_norm, self.mixer_output_norm, self.mlp_norm, self.mlp_output_norm)
        kept = [norm for norm in own if norm is not None]
        return (*kept, *self.mixer.norms(), *self.mlp.norms())
