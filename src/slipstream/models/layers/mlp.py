"""The dense feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from slipstream.models.layers.activation import GatedActivation
from slipstream.models.layers.block import LayerContext
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(act(gate(x)) * up(x)).

    Attributes:
        gate_up: Rows of gates, then of ups.
        activation: Between the two products.
    """

    gate_up: Linear
    down: Linear
    activation: GatedActivation

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """See `Part`."""
        inner = context.multiply(self.gate_up, normed.to(context.dtype))
        return context.multiply(self.down, self.activation(inner))

    def linears(self) -> tuple[Linear, ...]:
        """See `Part`."""
        return self.gate_up, self.down

    def norms(self) -> tuple[RmsNorm, ...]:
        """See `Part`."""
        return ()
