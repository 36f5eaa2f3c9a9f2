"""How likely the target is to draw what a draft model draws with the same noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.sampling.noise import gumbel_at
from slipstream.sampling.sampler import Candidates, RowRequest

NUM_RIVALS = 8
"""Candidates per row among which the chance of acceptance is shared out."""

LOGIT_DISAGREEMENT = 0.5
"""Assumed scale, at temperature 1, of how far the target's logits are from the draft model's."""

_LEAST_OVERLAP = 0.05


def acceptance_shares(
    requests: Sequence[RowRequest], candidates: Candidates
) -> npt.NDArray[np.float64]:
    """[rows, k] chance that the target draws each candidate; a row sums to 1.

    Target and draft model add the same noise, so they disagree only where their logits do. If
    these differ by independent Gumbel noise of scale s, the target's choice is distributed as the
    softmax of the draft's perturbed logits at temperature s. A request's temperature divides the
    difference as it divides the logits.

    The scale fits a draft model whose logits are off by a standard deviation of 0.25 to 1; the
    length controller corrects the rest from what it measures.
    """
    ids, probs = candidates
    scores = np.full(probs.shape, -np.inf)
    np.log(probs, out=scores, where=probs > 0.0)
    for row, request in enumerate(requests):
        temperature = 1.0
        if not request.params.is_greedy:
            temperature = request.params.temperature
            scores[row] += gumbel_at(request.seed, request.position, np.maximum(ids[row], 0))
        scores[row] *= temperature / LOGIT_DISAGREEMENT
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def expected_overlap(draft_probs: npt.NDArray[np.float64], temperature: float) -> float:
    """Chance that a draw from these probabilities is accepted by rejection: the sum of min(p, q).

    It knows the distribution and not the draw. If the target's logits are off by independent
    normal errors of standard deviation s, half the sum of |p - q| is, to first order,
    s / sqrt(2 pi) * sum of q_i sqrt(1 - 2 q_i + sum of q_j^2).

    Args:
        draft_probs: [n] sum 1. temperature: What the logits were divided by.
    """
    deviation = LOGIT_DISAGREEMENT * math.pi / math.sqrt(6.0) / temperature  # of Gumbel errors
    spread = 1.0 - 2.0 * draft_probs + np.square(draft_probs).sum()
    distance = float((draft_probs * np.sqrt(np.maximum(spread, 0.0))).sum())
    return max(1.0 - deviation / math.sqrt(2.0 * math.pi) * distance, _LEAST_OVERLAP)
