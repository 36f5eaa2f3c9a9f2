"""Root-mean-square normalisation, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor


class RmsNorm:
    """y = x / sqrt(mean(x²) + eps) · w over the last axis.

    Torch reduces each row of the last axis by itself (a lone row of 32768 elements or more would
    be split between threads), and every other operation is a correctly rounded one, so neither the
    number of rows nor of threads changes a row.

    Args:
        weight: [size], size below 32768; held as float32.
        eps: Added to the mean of squares.
        is_zero_centred: The weight is stored as w - 1.
    Attributes:
        scale, eps: w and eps of the formula.
    Source: Zhang & Sennrich 2019 (arXiv:1910.07467).
    """

    def __init__(self, weight: Tensor, eps: float, *, is_zero_centred: bool) -> None:
        size = weight.shape[0]
        scale = weight.float() + 1.0 if is_zero_centred else weight.float()
        # The mean's 1/size is taken out of the root: |x| is one fused reduction, a mean is two.
        self._weight = scale * size**0.5
        self._eps = eps * size
        self.scale, self.eps = scale, eps
        self.nbytes = self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise [..., size] of any float dtype; gives [..., size] float32."""
        x = x.float()
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.mul(x, length.mul_(length).add_(self._eps).rsqrt_()).mul_(self._weight)
