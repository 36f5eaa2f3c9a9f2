"""Log-probabilities of tokens: the chosen one, its rank, the best alternatives.

The caller decides whose distribution it is: the model's own logits (`raw`), or what
`Sampler.processed` returns (`processed`). One row at a time, sums in one order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import EngineFailureError
from slipstream.sampling.noise import FloatArray
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.sampling.transforms import best_ids


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How probable a token was.

    Attributes:
        logprob: Natural logarithm of its probability; -inf if it is impossible.
        rank: 1 + number of tokens with a strictly larger logit.
        top: The most probable tokens, best first, lowest id first on ties; impossible ones are
            left out.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[Alternative, ...] = ()


def score_tokens(
    logits: Tensor,  # [rows, vocab or more] float32
    token_ids: Sequence[int],
    *,
    vocab_size: int,
    num_top: int = 0,
) -> list[TokenScore]:
    """Scores of one token per row under the softmax of the first `vocab_size` logits.

    Prompt log-probabilities are this too: the row at position i scores prompt token i + 1.

    Raises:
        SamplingError: The first row whose logits are not finite.
    """
    rows = logits.detach()[:, :vocab_size].to("cpu", torch.float32).numpy()
    with np.errstate(all="ignore"):
        return [
            _score(row, token_id, num_top, index)
            for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True))
        ]


def score_drawn(
    sampler: Sampler,
    logits: Tensor,  # [rows, vocab or more] float32, as given to `Sampler.sample`
    requests: Sequence[RowRequest],
    token_ids: Sequence[int],
) -> Iterator[TokenScore]:
    """Scores of drawn tokens in turn, each row by its request's `logprobs_mode` and `top_logprobs`.

    Raises:
        SamplingError: As in `Sampler.sample`; behind the scores of the rows before.
    """
    for index, (request, token_id) in enumerate(zip(requests, token_ids, strict=True)):
        row = logits[index : index + 1]
        try:
            if request.params.logprobs_mode == "processed":
                row = sampler.processed(row, [request])
            yield from score_tokens(
                row,
                [token_id],
                vocab_size=sampler.vocab_size,
                num_top=request.params.top_logprobs,
            )
        except SamplingError as error:
            raise SamplingError(index, error.error) from error


def _score(row: FloatArray, token_id: int, num_top: int, index: int) -> TokenScore:
    best = row.max()
    if not np.isfinite(best):
        raise SamplingError(
            index,
            EngineFailureError(
                f"the model's logits are not finite (their largest is {best}); they have no "
                "log-probabilities"
            ),
        )
    total = math.log(float(np.exp(row - best).sum(dtype=np.float64)))
    chosen = row[token_id]
    top_ids = best_ids(row, num_top) if num_top else ()
    return TokenScore(
        token_id=token_id,
        logprob=float(chosen) - float(best) - total,
        rank=int(np.count_nonzero(row > chosen)) + 1,
        top=tuple(
            Alternative(int(top_id), float(row[top_id]) - float(best) - total) for top_id in top_ids
        ),
    )
