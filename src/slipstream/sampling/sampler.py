"""The sampler: token = sample(logits row, params, state, seed, position), and nothing else.

Each row is computed by itself, so its result cannot depend on how many rows, or which, are in the
call, nor on the number of threads. The rule is written in numpy (`row_rule.py`); native kernels
draw what it would draw, and it is asked where they cannot be sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import InvalidRequestError, RequestError, SlipstreamError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.structs import MAX_DRAW_COUNT
from slipstream.sampling.native_rows import (
    NO_NODES,
    DrawnRow,
    Int32Array,
    NativeRows,
    TokenSubset,
)
from slipstream.sampling.noise import FloatArray, IntArray
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.row_rule import RowRule
from slipstream.sampling.state import SamplingState

_FEW_ROWS = 8  # so many greedy rows numpy searches sooner than a native call does


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
        kernels: The native kernels, which draw the same tokens sooner; None leaves it to numpy.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        kernels: KernelLibrary | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self._rule = RowRule(vocab_size, self.eos_token_ids)
        self._native = None if kernels is None else NativeRows(kernels, vocab_size)

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
        rows = _rows(logits, len(requests), self.vocab_size)
        return self.draw(rows, range(len(rows)), requests)

    def draw(
        self,
        logits: FloatArray,  # [any number, vocab or more] as from `host_rows`
        rows: Sequence[int],
        requests: Sequence[RowRequest],
    ) -> list[int | SamplingError]:
        """As `outcomes`, of chosen rows."""
        return [walk[0] for walk in self.walk(logits, rows, requests)]

    def walk(
        self,
        logits: FloatArray,  # [any number, vocab or more] as from `host_rows`
        rows: Sequence[int],
        requests: Sequence[RowRequest],
        nodes: Sequence[Int32Array] | None = None,
    ) -> list[list[int | SamplingError]]:
        """Tokens from each row on: its own, then that of the node which carries it, and so on.

        Args:
            nodes: Of each row, see `DrawnRow.nodes`; None where none has any or it `goes_by_row`.
        Returns: At least one outcome for each row. A walk may end before its tree does: it goes on
            at the row of the last node that it has reached.
        """
        walks: list[list[int | SamplingError]] = [[] for _ in rows]
        is_by_row = nodes is None and goes_by_row([item.params for item in requests], len(rows))
        if self._native is not None and not is_by_row:
            asked = self._askable(rows, requests, nodes)
            drawn = self._native.draw(logits, list(asked.values()))
            for number, tokens in zip(asked, drawn, strict=True):
                walks[number] += tokens
        for number, walk in enumerate(walks):
            if not walk:
                row, request = logits[rows[number], : self.vocab_size], requests[number]
                try:
                    walk.append(self._rule.draw(row, request))
                except RequestError as error:
                    walk.append(SamplingError(number, error))
        return walks

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
        rows = _rows(logits, len(requests), self.vocab_size)[:, : self.vocab_size]
        result = np.empty((len(requests), self.vocab_size), dtype=np.float32)
        for index, (row, request) in enumerate(zip(rows, requests, strict=True)):
            try:
                result[index] = self._rule.processed(row, request)
            except RequestError as error:
                raise SamplingError(index, error) from error
        return torch.from_numpy(result)

    def top_candidates(
        self,
        logits: Tensor,  # [rows, vocab or more] float32, or [rows, columns] with `subset`
        requests: Sequence[RowRequest],
        k: int,
        subset: TokenSubset | None = None,
    ) -> Candidates:
        """The k best tokens of each row by perturbed logit; the first is what `sample` returns.

        A drafter that proposes them proposes in the order in which the target's own noise
        prefers them. A greedy row's are the k best by processed logit.

        Args:
            subset: The tokens that the rows' columns stand for; all others count as impossible.

        Raises:
            SamplingError: As in `sample`.
        """
        num_columns = self.vocab_size if subset is None else subset.ids.size
        rows = _rows(logits, len(requests), num_columns)
        ids = np.full((len(requests), k), -1, dtype=np.int64)
        probs = np.zeros((len(requests), k), dtype=np.float32)
        if self._native is not None and k <= MAX_DRAW_COUNT:
            asked = self._askable(range(len(rows)), requests)
            numbers = list(asked)
            places, probs[numbers] = self._native.best(rows, list(asked.values()), k, subset)
            ids[numbers] = places if subset is None else _ids_at(places, subset)
        for index in np.flatnonzero(ids[:, 0] == -1).tolist():
            row = _whole(rows[index], self.vocab_size, subset)
            try:
                best = self._rule.best(row, requests[index], k)
            except RequestError as error:
                raise SamplingError(index, error) from error
            ids[index, : best.ids.size] = best.ids
            probs[index, : best.ids.size] = best.probs
        return Candidates(ids, probs)

    def takes_logits_as_they_are(self, params: SamplingParams) -> bool:
        """Whether only temperature, filters and noise stand between logits and the choice."""
        try:
            return self._rule.processors(params).is_idle
        except InvalidRequestError:
            return False

    def _askable(
        self,
        rows: Sequence[int],
        requests: Sequence[RowRequest],
        nodes: Sequence[Int32Array] | None = None,
    ) -> dict[int, DrawnRow]:
        """What can be drawn by number; rows whose parameters name unknown tokens cannot."""
        asked: dict[int, DrawnRow] = {}
        for number, (row, request) in enumerate(zip(rows, requests, strict=True)):
            try:
                processors = self._rule.processors(request.params)
            except InvalidRequestError:
                continue  # the rule says so again, to whom it concerns
            of_row = nodes[number] if nodes is not None and processors.only_bans else NO_NODES
            asked[number] = DrawnRow(row, request, processors, of_row)
        return asked


def goes_by_row(params: Sequence[SamplingParams], num_rows: int) -> bool:
    """Whether maxima one by one, as far as walks go, take less time than a native call for all.

    Behind a pass, preparing a call is cold code. Walks are given without nodes then.

    Args:
        params: Of each walk; `num_rows` is what they may reach together.
    """
    if len(params) > 1 and num_rows > _FEW_ROWS:
        return False
    return all(item.is_greedy for item in params)


def _rows(logits: Tensor, num_rows: int, num_columns: int) -> FloatArray:
    if logits.ndim != 2 or logits.shape[0] != num_rows:
        raise ValueError(
            f"{num_rows} requests need as many rows of logits, got {tuple(logits.shape)}"
        )
    if logits.shape[1] < num_columns:
        raise ValueError(
            f"logits have {logits.shape[1]} columns, fewer than the vocabulary's "
            f"{num_columns} tokens"
        )
    return host_rows(logits)


def _ids_at(places: Int32Array, subset: TokenSubset) -> IntArray:
    """The tokens in these columns; -1 stays."""
    return np.where(places < 0, -1, subset.ids[places])


def _whole(row: FloatArray, vocab_size: int, subset: TokenSubset | None) -> FloatArray:
    """[vocab] of a row that may have a part of the vocabulary."""
    if subset is None:
        return row[:vocab_size]
    whole = np.full(vocab_size, -np.inf, np.float32)
    whole[subset.ids] = row[: subset.ids.size]
    return whole


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
