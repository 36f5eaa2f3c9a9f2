"""What a checkpoint lacks, told from its headers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.kernels.matrix import StoredWeight
from slipstream.models.layers.linear import Linear, MatrixLinear
from slipstream.models.weight_reader import Products, WeightReader, joined, require_shape
from slipstream.weights.checkpoint import Checkpoint


class HeaderReader(WeightReader):
    """Gives tensors without data, and notes what reading them would have refused.

    So the code that reads a layer says which tensors it needs, and nothing else has to know.

    Attributes:
        problems: In words, in the order in which tensors were asked for.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, Products(torch.float32))
        self.problems: list[str] = []
        self._shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Of this shape, without data."""
        if name not in self._shapes:
            self.problems.append(f"there is no tensor {name}")
            return torch.empty(shape, device="meta")
        try:
            require_shape(name, self._shapes[name], shape)
        except WeightsError as error:
            self.problems.append(error.message)
        return torch.empty(shape, device="meta")

    def linear_of(self, parts: Sequence[StoredWeight], bias: Tensor | None = None) -> Linear:
        """A product that cannot be computed."""
        return MatrixLinear(joined(parts), bias)

    def exact_linear_of(self, parts: Sequence[StoredWeight]) -> Linear:
        """As `linear_of`."""
        return self.linear_of(parts)
