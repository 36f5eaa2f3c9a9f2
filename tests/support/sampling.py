"""A slow, scalar sampler in float64, written from the rules and not from the code.

It also says how close its decision was, so that a test can leave out rows where float32 and
float64 may rightly differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.sampling.params import SamplingParams
from tests.support.words import text_of

MASK32 = 2**32 - 1
MASK64 = 2**64 - 1


def mix64(value: int) -> int:
    value &= MASK64
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & MASK64
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & MASK64
    return value ^ (value >> 31)


def hash32(seed: int, position: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = mix64(mix64(seed + golden) + position * golden)
    value = token ^ (key >> 32)
    value ^= value >> 16
    value = value * 0x7FEB352D & MASK32
    value ^= value >> 15
    value = (value + key) & MASK32
    value = value * 0x846CA68B & MASK32
    return value ^ (value >> 16)


def gumbel(seed: int, position: int, token: int) -> float:
    v = (hash32(seed, position, token) + 0.5) / 2**32
    return -math.log(-math.log1p(-v))


@dataclass(frozen=True)
class Row:
    """One row as the rules see it: the whole history, no incremental state."""

    logits: Sequence[float]
    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    seed: int = 0
    eos: Sequence[int] = ()

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True)
class Decision:
    """What the oracle says.

    Attributes:
        probs: Probability of each token.
        token: The token drawn.
        margin: How far the nearest deciding comparison was from going the other way.
    """

    probs: list[float]
    token: int
    margin: float


def processed_logits(row: Row) -> list[float]:
    """Logits after the processors, -inf where a token may not be drawn."""
    params, history = row.params, [*row.prompt, *row.output]
    result: list[float] = []
    for token, value in enumerate(row.logits):
        logit = float(value)
        if token in history:
            logit = (
                logit / params.repetition_penalty
                if logit > 0
                else logit * params.repetition_penalty
            )
        count = list(row.output).count(token)
        if count:
            logit -= params.presence_penalty + params.frequency_penalty * count
        logit += params.logit_bias.get(token, 0.0)
        if any(text_of(*history, token).endswith(word) for word in params.bad_words):
            logit = -math.inf
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logit = -math.inf
        stops = {*row.eos, *params.stop_token_ids}
        if len(row.output) < params.min_tokens and token in stops:
            logit = -math.inf
        result.append(logit)
    return result


def filtered_probs(logits: Sequence[float], params: SamplingParams) -> tuple[list[float], float]:
    """Probabilities after temperature and filters, and the filters' margin."""
    best = max(logits)
    weights = [math.exp((value - best) / params.temperature) for value in logits]
    order = sorted(
        (token for token in range(len(logits)) if weights[token] > 0.0),
        key=lambda token: (-logits[token], token),
    )
    margin = math.inf
    if params.min_p > 0.0:
        margin = min(abs(weights[token] - params.min_p) for token in order)
        order = [token for token in order if weights[token] >= params.min_p]
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        total, reached = sum(weights[token] for token in order), 0.0
        for length, token in enumerate(order, start=1):
            reached += weights[token]
            margin = min(margin, abs(reached / total - params.top_p))
            if reached >= params.top_p * total:
                order = order[:length]
                break
    total = sum(weights[token] for token in order)
    kept = set(order)
    probs = [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]
    return probs, margin


def decide(row: Row) -> Decision:
    """The token of `row` by the rules: processors, temperature, filters, Gumbel-max."""
    logits = processed_logits(row)
    if row.params.temperature == 0.0:
        scores, probs, margin = logits, [float(value == max(logits)) for value in logits], math.inf
    else:
        probs, margin = filtered_probs(logits, row.params)
        scores = [
            math.log(prob) + gumbel(row.seed, row.position, token) if prob > 0.0 else -math.inf
            for token, prob in enumerate(probs)
        ]
    token = scores.index(max(scores))
    rest = [score for other, score in enumerate(scores) if other != token]
    gap = scores[token] - max(rest, default=-math.inf)
    exact_tie = row.params.temperature == 0.0 and gap == 0.0
    return Decision(probs, token, margin if exact_tie else min(margin, gap))
