"""Rotary position embedding: angles by position, the same bits in every pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.models.hparams import RotaryParams

_BLOCK_LEN = 1024


@dataclass(frozen=True, slots=True)
class Rotation:
    """Angles of one pass's rows, shared by all layers with the same parameters.

    Attributes:
        cos: [rows, 1, rotated] float32, both halves equal.
        sin: [rows, 1, rotated] float32, the first half negated.
    """

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotate the leading values of [rows, heads, head_dim] float32; their halves are pairs."""
        num_rotated = self.cos.shape[-1]
        if num_rotated < x.shape[-1]:
            return torch.cat((self.apply(x[..., :num_rotated]), x[..., num_rotated:]), -1)
        turned = torch.roll(x, x.shape[-1] // 2, -1).mul_(self.sin)
        return torch.mul(x, self.cos).add_(turned)


class RotaryTable:
    """cos and sin by position, grown by whole blocks of positions as they are needed.

    Source: Su et al. 2021 (arXiv:2104.09864); pairs are (i, i + head_dim / 2), as in public
    checkpoints.
    """

    def __init__(self, params: RotaryParams, head_dim: int) -> None:
        self._frequencies = frequencies(params, head_dim)
        self._amplitude = params.amplitude
        self._cos = torch.empty(0, 1, head_dim)
        self._sin = torch.empty(0, 1, head_dim)

    def angles(self, positions: Tensor, max_position: int) -> tuple[Tensor, Tensor]:
        """cos and sin as `Rotation` holds them, of `positions` ([rows], none > `max_position`)."""
        cos, sin = self.tables(max_position)
        return cos.index_select(0, positions), sin.index_select(0, positions)

    def tables(self, max_position: int) -> tuple[Tensor, Tensor]:
        """cos and sin of all positions up to `max_position` or beyond, as `Rotation` holds them."""
        while len(self._cos) <= max_position:
            self._grow()
        return self._cos, self._sin

    def _grow(self) -> None:
        start = len(self._cos)
        positions = np.arange(start, start + _BLOCK_LEN, dtype=np.float32)
        # float32 angles, as the public models were trained with; their cosine in float64.
        angles = np.outer(positions, self._frequencies).astype(np.float64)
        cos = torch.from_numpy(np.cos(angles) * self._amplitude).float()
        sin = torch.from_numpy(np.sin(angles) * self._amplitude).float()
        self._cos = torch.cat((self._cos, torch.cat((cos, cos), -1).unsqueeze(1)))
        self._sin = torch.cat((self._sin, torch.cat((-sin, sin), -1).unsqueeze(1)))


def frequencies(params: RotaryParams, head_dim: int) -> npt.NDArray[np.float32]:
    """Angle per position of each pair: [head_dim / 2] float32.

    Source of "llama3": the published Llama 3.1 code; between the two wavelength bounds it blends.
    Source of "yarn": Peng et al. 2023 (arXiv:2309.00071); it blends between two numbers of turns,
    by the index of the pair.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = 1.0 / np.float32(params.theta) ** exponents
    if params.scaling == "linear":
        plain = plain / np.float32(params.factor)
    elif params.scaling == "llama3":
        turns = params.original_max_positions * plain / (2 * math.pi)
        span = params.high_freq_factor - params.low_freq_factor
        blend = np.clip((turns - params.low_freq_factor) / span, 0.0, 1.0)
        plain = (1 - blend) * plain / params.factor + blend * plain
    elif params.scaling == "yarn":
        first = max(math.floor(_pair_of_turns(params, head_dim, params.beta_fast)), 0)
        last = min(math.ceil(_pair_of_turns(params, head_dim, params.beta_slow)), head_dim - 1)
        span = max(last - first, 0.001)
        blend = np.clip((np.arange(head_dim // 2, dtype=np.float32) - first) / span, 0.0, 1.0)
        plain = (1 - blend) * plain + blend * plain / np.float32(params.factor)
    return np.asarray(plain, np.float32)


def _pair_of_turns(params: RotaryParams, head_dim: int, turns: float) -> float:
    """Index of the pair that turns so often within the original positions."""
    wavelength = params.original_max_positions / (turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(params.theta))
