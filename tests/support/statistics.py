"""Whether samples follow a law: chi-square, with samples that a test's seeds make definite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import SamplingState, advance, initial_state

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
LEAST_EXPECTED = 5.0


def excess(samples: Iterable[Sequence[int]], law: Mapping[Tokens, float]) -> float:
    """How many standard deviations chi-square lies above its mean; below 4 is no evidence.

    Outcomes that are expected less than five times are taken as one. An outcome that the law rules
    out is infinitely far away.
    """
    counts = Counter(tuple(sample) for sample in samples)
    total = sum(counts.values())
    if any(law.get(outcome, 0.0) <= 0.0 for outcome in counts):
        return float("inf")
    rare_count, rare_expected, terms = 0.0, 0.0, []
    for outcome, probability in law.items():
        expected = total * probability
        if expected < LEAST_EXPECTED:
            rare_count += counts[outcome]
            rare_expected += expected
        else:
            terms.append((counts[outcome] - expected) ** 2 / expected)
    if rare_expected >= LEAST_EXPECTED:
        terms.append((rare_count - rare_expected) ** 2 / rare_expected)
    freedom = len(terms) - 1
    return float((sum(terms) - freedom) / (2.0 * freedom) ** 0.5)


def law_of(
    logits_of: Callable[[Tokens], torch.Tensor],
    prompt: Tokens,
    params: SamplingParams,
    num_tokens: int,
    vocab_size: int,
) -> Law:
    """The law of the first tokens of an answer, by enumeration.

    Args:
        logits_of: Tokens so far -> [vocab] float32 logits of the next one.
    """
    sampler = Sampler(vocab_size, ())
    states: dict[Tokens, tuple[float, SamplingState]] = {(): (1.0, initial_state(params, prompt))}
    for _ in range(num_tokens):
        longer: dict[Tokens, tuple[float, SamplingState]] = {}
        for tokens, (probability, state) in states.items():
            row = logits_of((*prompt, *tokens)).unsqueeze(0)
            request = RowRequest(params, state, 0, len(prompt) + len(tokens))
            probs = sampler.processed(row, [request])[0].double().softmax(-1).numpy()
            for token in np.flatnonzero(probs).tolist():
                next_state = advance(params, state, token)
                longer[(*tokens, token)] = (probability * float(probs[token]), next_state)
        states = longer
    return {tokens: probability for tokens, (probability, _) in states.items()}
