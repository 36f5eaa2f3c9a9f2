"""How large the values of each channel of the taps are.

A few channels of a residual stream are hundreds of times larger than the others, and nearly
constant. Untreated they drown the rest at the start of a training, and a step that suits them
moves the others by nothing. A trainer therefore optimises `fc` for taps that are divided by these
scales, and stores the quotient; what a drafter computes stays the same.

Source on the channels: Sun et al. 2024 (arXiv:2402.17762), massive activations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.training.target import Features

NUM_MEASURED = 64
_OUTLIER = (
    3.0  # rows that are so many times longer than the median, such as the first, are left out
)
_SMALLEST = 1e-6


def usual_taps(features: Sequence[Features]) -> Tensor:
    """[places, taps * hidden] float32 without outlier rows."""
    taps = torch.cat([item.taps for item in features]).float()
    lengths = taps.norm(dim=-1)
    return taps[lengths <= _OUTLIER * lengths.median()]


def tap_scales_of(taps: Tensor) -> Tensor:
    """[taps * hidden] float32 root mean square of each channel of `usual_taps`."""
    return taps.square().mean(0).sqrt().clamp_min(_SMALLEST)


def exact_scales(scales: Tensor) -> Tensor:
    """The nearest powers of two: what is multiplied by them and divided again stays to the bit."""
    return scales.log2().round().exp2()
