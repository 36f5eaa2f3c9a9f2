"""Whether drawn tokens follow the distributions that the target says they were drawn from.

Verification by rejection keeps the distribution of answers and not their tokens. So for each token
the audit asks for the target's likeliest ones at its place, and counts how often each of them came
out. Given all tokens before it, the likeliest token comes out with the probability that the target
gives it, whatever was drafted. So over all tokens, count minus expectation is a sum of steps of
mean zero (a martingale), and divided by its standard deviation it is nearly normal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from slipstream.sampling.params import SamplingParams

NUM_TOP = 5
MAX_DISTANCE = 4.5
"""Standard deviations that chance exceeds about once in 25,000 settings of six counts each."""

_LEAST_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class Draw:
    """One token beside what the target gave the likeliest ones at its place.

    Attributes:
        place: Which of them it is, from 0; None for any other token.
        top_probs: Their probabilities after processors, temperature and filters, best first.
    """

    place: int | None
    top_probs: tuple[float, ...]


def law_params(params: SamplingParams) -> SamplingParams:
    """The same, reporting what each token is drawn from; every token is counted, the end too."""
    return replace(
        params, logprobs=True, top_logprobs=NUM_TOP, logprobs_mode="processed", ignore_eos=True
    )


def law_distance(draws: Iterable[Draw]) -> float:
    """The largest distance of a count from its expectation, in standard deviations.

    Counted are the likeliest tokens by their place, and all others together; what is expected less
    than five times, or fails to come out less than five times, is left out. 0.0 without any count.
    """
    counts, expected, variance = (np.zeros(NUM_TOP + 1) for _ in range(3))
    total = 0
    for draw in draws:
        total += 1
        probs = np.zeros(NUM_TOP + 1)
        probs[: len(draw.top_probs)] = draw.top_probs
        probs[-1] = max(1.0 - probs.sum(), 0.0)
        counts[-1 if draw.place is None else draw.place] += 1.0
        expected += probs
        variance += probs * (1.0 - probs)
    is_counted = (expected >= _LEAST_EXPECTED) & (total - expected >= _LEAST_EXPECTED)
    if not is_counted.any():
        return 0.0
    distances = np.abs(counts - expected)[is_counted] / np.sqrt(variance[is_counted])
    return float(distances.max())
