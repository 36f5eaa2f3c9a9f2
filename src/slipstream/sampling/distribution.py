"""What a row's token is drawn from, as probabilities, and draws from such."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slipstream.sampling.noise import FloatArray
from slipstream.sampling.sampler import RowRequest, Sampler

Probs = npt.NDArray[np.float64]


def distribution(
    sampler: Sampler,
    row: FloatArray,  # [vocab or more]
    request: RowRequest,
) -> Probs:
    """[vocab_size] probabilities after processors, temperature and filters; the sum is 1.

    Args:
        request: Not greedy: a greedy row is no draw.
    Raises:
        SamplingError: The row has no token; its own number in the error is 0.
    """
    logits = torch.from_numpy(row).unsqueeze(0)
    values = sampler.processed(logits, [request])[0].numpy()
    weights = np.exp(values - values.max()).astype(np.float64)
    probs: Probs = weights / weights.sum()
    return probs


def draw_at(
    probs: Probs,  # [vocab], any positive sum
    uniform: float,
) -> int:
    """The token at a share `uniform` of the mass, ids ascending; never one without mass."""
    cumulative = probs.cumsum()
    place = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return int(min(place, np.flatnonzero(probs)[-1]))
