"""The Gumbel-max rule, computing only the noise that can win.

score(token) = float64(log_weight) + float64(G). With e = -log1p(-v), a token reaches the score
log(r) exactly when weight / e >= r. Since e >= v >= (hash >> 8) / 2^24, only tokens with
weight >= r * (hash >> 8) / 2^24 can reach it: one comparison, without a logarithm. The exact scores
of these few are then computed; if the best of them reaches log(r), nobody else can have won.
If not (about once in 3000 draws), all tokens are scored. The result never depends on r.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slipstream.sampling.noise import (
    FloatArray,
    HashArray,
    IntArray,
    NoiseKey,
    gumbel,
    hash_tokens,
)

ScoreArray = npt.NDArray[np.float64]

# Covers the rounding of float32 weights, of the noise and of the comparison, a thousand times.
_SLACK = 1.0 - 1e-3
# P(no token reaches log(total / 8)) = exp(-8).
_EXPECTED_SURVIVORS = 8.0
_RETRY_FACTOR = 64.0
# Far above it every weight and bound is a normal float32; below it all tokens are scored.
_LEAST_RATIO = math.exp(-60.0)
# Up to this many tokens, pruning costs more than it saves.
_EXACT_LEN = 2048


class Workspace:
    """Buffers for one row; one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self.token_ids = np.arange(vocab_size, dtype=np.uint32)
        self.hashes = np.empty(vocab_size, dtype=np.uint32)
        self.bits = np.empty(vocab_size, dtype=np.uint32)
        self.weights = np.empty(vocab_size, dtype=np.float32)
        self.bounds = np.empty(vocab_size, dtype=np.float32)
        self.processed = np.empty(vocab_size, dtype=np.float32)
        self.log_weights = np.empty(vocab_size, dtype=np.float32)


def draw_best(
    log_weights: FloatArray,  # [vocab], maximum 0
    kept: IntArray | None,
    key: NoiseKey,
    count: int,
    workspace: Workspace,
) -> IntArray:
    """The `count` tokens with the largest scores, best first, lowest id first on ties.

    Args:
        kept: Ids that may be drawn, ascending; None for all.
    Returns: [at most count] ids; tokens of weight -inf are never among them.
    """
    if kept is None:
        token_ids, values = workspace.token_ids, log_weights
    else:
        token_ids, values = kept.astype(np.uint32), log_weights[kept]
    size = values.size
    hashes = hash_tokens(key, token_ids, workspace.hashes[:size], workspace.bits[:size])
    if size > _EXACT_LEN:
        weights = np.exp(values, out=workspace.weights[:size])
        ratio = float(weights.sum()) / (_EXPECTED_SURVIVORS + 4.0 * (count - 1))
        while ratio > _LEAST_RATIO:
            chosen = _may_reach(ratio, weights, hashes, workspace)
            scores = _scores(values[chosen], hashes[chosen])
            if np.count_nonzero(scores >= math.log(ratio)) >= count:
                return _best(scores, token_ids[chosen], count)
            ratio /= _RETRY_FACTOR
    return _best(_scores(values, hashes), token_ids, count)


def _may_reach(
    ratio: float, weights: FloatArray, hashes: HashArray, workspace: Workspace
) -> IntArray:
    """Indices of every token whose score can be log(ratio) or more, and of a few others."""
    bits = np.right_shift(hashes, np.uint32(8), out=workspace.bits[: hashes.size])
    bounds = workspace.bounds[: hashes.size]
    np.copyto(bounds, bits.view(np.int32), casting="unsafe")  # exact: 24 bits
    np.multiply(bounds, np.float32(ratio * 2.0**-24 * _SLACK), out=bounds)
    return np.flatnonzero(weights >= bounds)


def _scores(log_weights: FloatArray, hashes: HashArray) -> ScoreArray:
    return log_weights.astype(np.float64) + gumbel(hashes)


def _best(scores: ScoreArray, token_ids: HashArray, count: int) -> IntArray:
    """The ids of the `count` best scores, from ids that ascend."""
    if count == 1:
        return token_ids[[scores.argmax()]].astype(np.int64)
    order = np.argsort(-scores, kind="stable")[:count]
    return token_ids[order[scores[order] > -np.inf]].astype(np.int64)
