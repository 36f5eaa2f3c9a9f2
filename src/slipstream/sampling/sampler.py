"""The sampler: token = sample(logits row, params, state, seed, position), and nothing else.

Rows are computed one at a time by the same code, so a row's result cannot depend on how many
rows, or which, are in the call, nor on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import EngineFailureError, InvalidRequestError, RequestError, SlipstreamError
from slipstream.sampling.draw import Workspace, draw_best
from slipstream.sampling.noise import FloatArray, IntArray, noise_key
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import Processors
from slipstream.sampling.state import SamplingState
from slipstream.sampling.transforms import best_ids, kept_ids, temper

_MAX_PREPARED = 512


@dataclass(frozen=True, slots=True)
class RowRequest:
    """All that a row's token depends on, besides its logits.

    Attributes:
        params: The request's parameters.
        state: The memory of the tokens before this one.
        seed: Seed of this choice (`noise.derive(params.seed, choice)`).
        position: Index, in prompt and output together, of the token being drawn.
    """

    params: SamplingParams
    state: SamplingState
    seed: int
    position: int


class SamplingError(SlipstreamError):
    """One row has no token; the other rows are not affected.

    Attributes:
        row: Index of the row in the call.
        error: What its request fails with: `InvalidRequestError` where its parameters leave no
            token or name an unknown one, `EngineFailureError` where the logits are not finite.
    """

    def __init__(self, row: int, error: RequestError) -> None:
        super().__init__(f"row {row}: {error.message}", hint=error.hint)
        self.row = row
        self.error = error


class Candidates(NamedTuple):
    """The tokens that are most likely to be drawn, per row.

    Attributes:
        ids: [rows, k] int64, best first; -1 where a row has fewer than k tokens left.
        probs: [rows, k] float32 under the processed distribution (a greedy row: under its
            processed logits at temperature 1); 0 where the id is -1.
    """

    ids: IntArray
    probs: FloatArray


class Sampler:
    """Draws tokens for one target. Not thread-safe: each thread has its own.

    Args:
        vocab_size: Size of the tokenizer's vocabulary. Logits may be padded beyond it; the
            padding is never read.
        eos_token_ids: Tokens that end an output, banned by `min_tokens`.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self._workspace = Workspace(vocab_size)
        self._prepared: dict[int, Processors] = {}

    def sample(
        self,
        logits: Tensor,  # [rows, vocab or more] float32
        requests: Sequence[RowRequest],
    ) -> list[int]:
        """The token of each row.

        Raises:
            SamplingError: The first row that has no token; the call can be repeated without it.
        """
        tokens: list[int] = []
        for outcome in self.outcomes(logits, requests):
            if isinstance(outcome, SamplingError):
                raise outcome
            tokens.append(outcome)
        return tokens

    def outcomes(
        self,
        logits: Tensor,  # [rows, vocab or more] float32
        requests: Sequence[RowRequest],
    ) -> list[int | SamplingError]:
        """The token of each row, or why that row has none."""
        return self.draw(list(self._array(logits, len(requests))), requests)

    def draw(
        self,
        rows: Sequence[FloatArray],  # [vocab or more] each
        requests: Sequence[RowRequest],
    ) -> list[int | SamplingError]:
        """As `outcomes`, of rows as `host_rows` gives them."""
        outcomes: list[int | SamplingError] = []
        for index, (row, request) in enumerate(zip(rows, requests, strict=True)):
            try:
                outcomes.append(self._draw(row[: self.vocab_size], request, index))
            except SamplingError as error:
                outcomes.append(error)
        return outcomes

    def processed(
        self,
        logits: Tensor,  # [rows, vocab or more] float32
        requests: Sequence[RowRequest],
    ) -> Tensor:
        """Logits after processors, temperature and filters; softmax of them is what is drawn from.

        Returns: [rows, vocab_size] float32 on the CPU; -inf for what cannot be drawn. A greedy
            row has neither temperature nor filters.
        Raises:
            SamplingError: As in `sample`.
        """
        result = np.empty((len(requests), self.vocab_size), dtype=np.float32)
        with np.errstate(all="ignore"):
            for index, (row, request) in enumerate(self._rows(logits, requests)):
                values, best = self._process(row, request, index)
                if request.params.is_greedy:
                    result[index] = values
                    continue
                values, kept = self._shape(values, best, request.params)
                if kept is None:
                    result[index] = values
                else:
                    result[index] = -np.inf
                    result[index, kept] = values[kept]
        return torch.from_numpy(result)

    def top_candidates(
        self,
        logits: Tensor,  # [rows, vocab or more] float32
        requests: Sequence[RowRequest],
        k: int,
    ) -> Candidates:
        """The k best tokens of each row by perturbed logit; the first is what `sample` returns.

        A drafter that proposes them proposes in the order in which the target's own noise
        prefers them. A greedy row's are the k best by processed logit.

        Raises:
            SamplingError: As in `sample`.
        """
        ids = np.full((len(requests), k), -1, dtype=np.int64)
        probs = np.zeros((len(requests), k), dtype=np.float32)
        with np.errstate(all="ignore"):
            for index, (row, request) in enumerate(self._rows(logits, requests)):
                values, best = self._process(row, request, index)
                if request.params.is_greedy:
                    chosen = best_ids(values, k)
                    weights, kept = temper(values, best, 1.0, self._workspace.log_weights), None
                else:
                    weights, kept = self._shape(values, best, request.params)
                    key = noise_key(request.seed, request.position)
                    chosen = draw_best(weights, kept, key, k, self._workspace)
                ids[index, : chosen.size] = chosen
                total = np.exp(weights if kept is None else weights[kept]).sum(dtype=np.float64)
                probs[index, : chosen.size] = np.exp(weights[chosen]) / total
        return Candidates(ids, probs)

    def takes_logits_as_they_are(self, params: SamplingParams) -> bool:
        """Whether only temperature, filters and noise stand between logits and the choice."""
        try:
            return self._processors(params).is_idle
        except InvalidRequestError:
            return False

    def _draw(self, row: FloatArray, request: RowRequest, index: int) -> int:
        if request.params.is_greedy:
            values = self._processed(row, request, index)
            token = int(values.argmax())
            if not math.isfinite(values.item(token)):  # a NaN counts as the largest
                raise SamplingError(index, _why_not_finite(row.max(), values[token], request))
            return token
        with np.errstate(all="ignore"):
            values, best = self._process(row, request, index)
            weights, kept = self._shape(values, best, request.params)
            key = noise_key(request.seed, request.position)
            return int(draw_best(weights, kept, key, 1, self._workspace)[0])

    def _process(
        self, row: FloatArray, request: RowRequest, index: int
    ) -> tuple[FloatArray, np.float32]:
        """The processed logits and their finite maximum."""
        values = self._processed(row, request, index)
        best = values.max()
        if np.isfinite(best):
            return values, best
        raise SamplingError(index, _why_not_finite(row.max(), best, request))

    def _processed(self, row: FloatArray, request: RowRequest, index: int) -> FloatArray:
        try:
            processors = self._processors(request.params)
        except InvalidRequestError as error:
            raise SamplingError(index, error) from error
        return processors.apply(row, request.state, self._workspace.processed)

    def _shape(
        self, values: FloatArray, best: np.float32, params: SamplingParams
    ) -> tuple[FloatArray, IntArray | None]:
        """Log-weights (maximum 0), and the ids that the filters keep (None for all)."""
        weights = temper(values, best, params.temperature, self._workspace.log_weights)
        return weights, kept_ids(weights, params)

    def _processors(self, params: SamplingParams) -> Processors:
        """Prepared processors, remembered by the identity of `params`."""
        prepared = self._prepared.get(id(params))
        if prepared is None:
            prepared = Processors(params, self.vocab_size, self.eos_token_ids)
            if len(self._prepared) >= _MAX_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[id(params)] = prepared  # it holds params, so the id stays taken
        return prepared

    def _rows(
        self, logits: Tensor, requests: Sequence[RowRequest]
    ) -> list[tuple[FloatArray, RowRequest]]:
        rows = self._array(logits, len(requests))
        return list(zip((row[: self.vocab_size] for row in rows), requests, strict=True))

    def _array(self, logits: Tensor, num_rows: int) -> FloatArray:
        if logits.ndim != 2 or logits.shape[0] != num_rows:
            raise ValueError(
                f"{num_rows} requests need as many rows of logits, got {tuple(logits.shape)}"
            )
        if logits.shape[1] < self.vocab_size:
            raise ValueError(
                f"logits have {logits.shape[1]} columns, fewer than the vocabulary's "
                f"{self.vocab_size} tokens"
            )
        return host_rows(logits)


def host_rows(logits: Tensor | FloatArray) -> FloatArray:
    """[rows, vocab or more] float32 in the host's memory, each row without gaps.

    The one host sync of a step on a device with its own memory; free on the CPU.
    """
    if isinstance(logits, np.ndarray):
        return logits
    if logits.requires_grad or logits.device.type != "cpu" or logits.dtype != torch.float32:
        logits = logits.detach().to("cpu", torch.float32)
    array: FloatArray = logits.numpy()
    return np.ascontiguousarray(array) if array.strides[1] != array.itemsize else array


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
