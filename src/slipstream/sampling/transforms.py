"""From processed logits to the distribution that is drawn from: temperature, then filters.

Filters keep a prefix of the tokens sorted by probability descending, id ascending:

    min_p   tokens at least `min_p` times as probable as the best one
    top_k   the first k of them
    top_p   the shortest prefix of those whose probability, renormalised over what min_p and
            top_k kept, reaches top_p; never empty

This is vLLM's order (min_p, then top_k, then top_p). min_p looks only at ratios, so it could
stand before or after top_k; top_p depends on what the other two left.
One row at a time and sums in one order: a row cannot notice its neighbours.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slipstream.sampling.noise import FloatArray, IntArray
from slipstream.sampling.params import SamplingParams

_LEAST = float(np.finfo(np.float32).min)
# Nearly every nucleus lies above e^-8 or e^-20 of the best token: sort only that far first.
_REACHES = (8.0, 20.0, math.inf)


def temper(
    logits: FloatArray,  # [vocab]
    best: np.float32,
    temperature: float,
    out: FloatArray,  # [vocab], written
) -> FloatArray:
    """(logits - best) / temperature: log-weights whose maximum is exactly 0.

    Args:
        best: The largest logit, finite. Subtracted first, so that no temperature can overflow.
    """
    np.subtract(logits, best, out=out)
    if temperature != 1.0:
        np.divide(out, np.float32(temperature), out=out)
    return out


def least_weight(params: SamplingParams) -> np.float32:
    """The least log-weight that min_p keeps; the least finite number where it is off."""
    return np.float32(max(math.log(params.min_p), _LEAST) if params.min_p > 0.0 else _LEAST)


def kept_ids(log_weights: FloatArray, params: SamplingParams) -> IntArray | None:
    """Token ids that survive the filters, ascending; None when no filter is set.

    Args:
        log_weights: [vocab] float32 with maximum 0, as from `temper`.
    """
    has_top_k = 0 < params.top_k < log_weights.size
    if not has_top_k and params.top_p >= 1.0 and params.min_p <= 0.0:
        return None
    floor = least_weight(params)
    if not has_top_k and params.top_p >= 1.0:
        return np.flatnonzero(log_weights >= floor)
    if has_top_k:
        values = largest(log_weights, params.top_k)
        values = values[values >= floor]
        if params.top_p < 1.0:
            cumulative = _cumulative(values)
            values = values[: _prefix_len(cumulative, params.top_p * float(cumulative[-1]))]
    else:
        values = _nucleus(log_weights, floor, params.top_p)
    return first_ids(log_weights, values[-1], values.size)


def largest(values: FloatArray, count: int) -> FloatArray:
    """The `count` largest values, descending; all of them if there are fewer."""
    if count < values.size:
        values = np.partition(values, values.size - count)[values.size - count :]
    return np.sort(values)[::-1]


def first_ids(values: FloatArray, threshold: np.float32, count: int) -> IntArray:
    """Ids of the first `count` values in (value descending, id ascending) order, by id.

    Args:
        threshold: The value of the last one of them; at least `count` values reach it.
    """
    ids = np.flatnonzero(values >= threshold)
    surplus = ids.size - count
    if surplus:
        tied = np.flatnonzero(values[ids] == threshold)
        ids = np.delete(ids, tied[tied.size - surplus :])
    return ids


def best_ids(values: FloatArray, count: int) -> IntArray:
    """Ids of the `count` largest values above -inf, best first, lowest id first on ties."""
    top = largest(values, count)
    top = top[top > -np.inf]
    if not top.size:
        return np.empty(0, dtype=np.int64)
    ids = first_ids(values, top[-1], top.size)
    return ids[np.argsort(-values[ids], kind="stable")]


def _nucleus(log_weights: FloatArray, floor: np.float32, top_p: float) -> FloatArray:
    """Log-weights of the top_p prefix among those at least `floor`, descending."""
    total: float | None = None
    if floor == _LEAST:
        total = float(np.exp(log_weights).sum(dtype=np.float64))
    for reach in _REACHES:
        is_last = math.isinf(reach) or total is None
        least = floor if is_last else np.float32(-reach)
        values = np.sort(log_weights[np.flatnonzero(log_weights >= least)])[::-1]
        cumulative = _cumulative(values)
        goal = top_p * (float(cumulative[-1]) if total is None else total)
        if is_last or cumulative[-1] >= goal:
            break
    return values[: _prefix_len(cumulative, goal)]


def _cumulative(log_weights: FloatArray) -> npt.NDArray[np.float64]:
    return np.cumsum(np.exp(log_weights), dtype=np.float64)


def _prefix_len(cumulative: npt.NDArray[np.float64], goal: float) -> int:
    """Length of the shortest prefix whose sum reaches `goal`; all if rounding keeps it below."""
    return min(int(np.searchsorted(cumulative, goal, side="left")) + 1, cumulative.size)
