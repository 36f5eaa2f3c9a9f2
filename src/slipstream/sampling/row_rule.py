"""How a token is drawn from one row: the rule, in numpy.

The native kernels answer for most rows (`native_rows.py`), always as this does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slipstream.errors import EngineFailureError, InvalidRequestError, RequestError
from slipstream.sampling.draw import ScoreArray, Workspace, draw_best
from slipstream.sampling.noise import FloatArray, IntArray, noise_key
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import Processors
from slipstream.sampling.transforms import best_ids, kept_ids, temper

if TYPE_CHECKING:
    from slipstream.sampling.sampler import RowRequest

_MAX_PREPARED = 512


class BestOfRow(NamedTuple):
    """The tokens that are most likely to be drawn, best first.

    Attributes:
        ids: [at most k] int64.
        probs: [at most k] as in `sampler.Candidates`.
    """

    ids: IntArray
    probs: ScoreArray


class RowRule:
    """Draws from one row at a time; not thread-safe.

    Args:
        vocab_size, eos_token_ids: As for `Sampler`.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._workspace = Workspace(vocab_size)
        self._prepared: dict[int, Processors] = {}

    def draw(self, row: FloatArray, request: RowRequest) -> int:
        """The token.

        Args:
            row: [vocab] float32.
        Raises:
            RequestError: There is none.
        """
        if request.params.is_greedy:
            values = self._processed(row, request)
            token = int(values.argmax())
            if not math.isfinite(values.item(token)):  # a NaN counts as the largest
                raise _why_not_finite(row.max(), values[token], request)
            return token
        with np.errstate(all="ignore"):
            values, best = self._process(row, request)
            weights, kept = self._shape(values, best, request.params)
            key = noise_key(request.seed, request.position)
            return int(draw_best(weights, kept, key, 1, self._workspace)[0])

    def processed(self, row: FloatArray, request: RowRequest) -> FloatArray:
        """[vocab] as in `Sampler.processed`; raises like `draw`. May be overwritten by the next."""
        with np.errstate(all="ignore"):
            values, best = self._process(row, request)
            if request.params.is_greedy:
                return values
            values, kept = self._shape(values, best, request.params)
            if kept is None:
                return values
            result = np.full(self._vocab_size, -np.inf, np.float32)
            result[kept] = values[kept]
            return result

    def best(self, row: FloatArray, request: RowRequest, count: int) -> BestOfRow:
        """The `count` best tokens; raises like `draw`."""
        with np.errstate(all="ignore"):
            values, best = self._process(row, request)
            if request.params.is_greedy:
                chosen = best_ids(values, count)
                weights, kept = temper(values, best, 1.0, self._workspace.log_weights), None
            else:
                weights, kept = self._shape(values, best, request.params)
                key = noise_key(request.seed, request.position)
                chosen = draw_best(weights, kept, key, count, self._workspace)
            total = np.exp(weights if kept is None else weights[kept]).sum(dtype=np.float64)
            return BestOfRow(chosen, np.exp(weights[chosen]) / total)

    def processors(self, params: SamplingParams) -> Processors:
        """Prepared processors, remembered by the identity of `params`.

        Raises:
            InvalidRequestError: `params` names an unknown token.
        """
        prepared = self._prepared.get(id(params))
        if prepared is None:
            prepared = Processors(params, self._vocab_size, self._eos_token_ids)
            if len(self._prepared) >= _MAX_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[id(params)] = prepared  # it holds params, so the id stays taken
        return prepared

    def _process(self, row: FloatArray, request: RowRequest) -> tuple[FloatArray, np.float32]:
        """The processed logits and their finite maximum."""
        values = self._processed(row, request)
        best = values.max()
        if np.isfinite(best):
            return values, best
        raise _why_not_finite(row.max(), best, request)

    def _processed(self, row: FloatArray, request: RowRequest) -> FloatArray:
        processors = self.processors(request.params)
        return processors.apply(row, request.state, self._workspace.processed)

    def _shape(
        self, values: FloatArray, best: np.float32, params: SamplingParams
    ) -> tuple[FloatArray, IntArray | None]:
        """Log-weights (maximum 0), and the ids that the filters keep (None for all)."""
        weights = temper(values, best, params.temperature, self._workspace.log_weights)
        return weights, kept_ids(weights, params)


def _why_not_finite(raw_best: np.float32, best: np.float32, request: RowRequest) -> RequestError:
    """Whose fault it is that a row has no largest finite logit: the model's or the request's."""
    if not np.isfinite(raw_best):
        return EngineFailureError(
            f"the model's logits for position {request.position} are not finite (their largest is "
            f"{raw_best}); no token can be drawn from them"
        )
    if np.isneginf(best):
        return InvalidRequestError(
            f"no token is left to draw at position {request.position}: allowed_token_ids, "
            "bad_words and min_tokens together exclude the whole vocabulary",
            hint="allow more tokens, or ban fewer",
        )
    return InvalidRequestError(
        f"repetition_penalty {request.params.repetition_penalty:g} pushes a logit at position "
        f"{request.position} beyond float32",
        param="repetition_penalty",
        hint="use a value between 0.5 and 2",
    )
