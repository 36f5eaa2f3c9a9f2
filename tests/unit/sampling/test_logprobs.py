"""Log-probabilities against float64, ranks and ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slipstream.sampling.logprobs import score_drawn, score_tokens
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.sampling.state import SamplingState

VOCAB = 1003


def random_logits(num_rows: int, spread: float = 4.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB + 21, generator=torch.Generator().manual_seed(0)) * spread


@pytest.mark.parametrize("spread", [0.01, 4.0, 200.0])
def test_logprobs_agree_with_float64(spread: float) -> None:
    logits = random_logits(8, spread)
    reference = torch.log_softmax(logits[:, :VOCAB].double(), dim=-1)
    token_ids = [0, 5, VOCAB - 1, 100, 7, 7, 7, 7]
    scores = score_tokens(logits, token_ids, vocab_size=VOCAB, num_top=20)
    for row, score in enumerate(scores):
        expected = reference[row, token_ids[row]].item()
        assert score.logprob == pytest.approx(expected, abs=1e-5)
        assert score.token_id == token_ids[row]
        best = reference[row].topk(20)
        assert [each.token_id for each in score.top] == best.indices.tolist()
        np.testing.assert_allclose([each.logprob for each in score.top], best.values, atol=1e-5)


def test_rank_counts_strictly_better_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]]).repeat(4, 1)
    scores = score_tokens(logits, [0, 1, 2, 3], vocab_size=4)
    assert [score.rank for score in scores] == [4, 1, 1, 3]
    assert all(score.top == () for score in scores)


def test_alternatives_take_the_lowest_ids_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    (score,) = score_tokens(logits, [4], vocab_size=5, num_top=3)
    assert [each.token_id for each in score.top] == [1, 3, 0]


def test_padding_has_no_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, 50.0]])
    (score,) = score_tokens(logits, [1], vocab_size=2, num_top=5)
    assert score.logprob == pytest.approx(math.log(0.5))
    assert [each.token_id for each in score.top] == [0, 1]


def test_scores_of_a_row_do_not_depend_on_the_others() -> None:
    logits = random_logits(16)
    together = score_tokens(logits, list(range(16)), vocab_size=VOCAB, num_top=5)
    for row in range(16):
        alone = score_tokens(logits[row : row + 1].clone(), [row], vocab_size=VOCAB, num_top=5)
        assert alone == [together[row]]


def test_raw_is_before_and_processed_is_after_processors_temperature_and_filters() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    sampler = Sampler(4, ())
    options = {"temperature": 0.5, "top_k": 2, "logit_bias": {1: 1.5}, "top_logprobs": 3}
    raw = SamplingParams(logprobs_mode="raw", **options)  # type: ignore[arg-type]  # mixed values
    processed = SamplingParams(logprobs_mode="processed", **options)  # type: ignore[arg-type]  # ditto
    requests = [RowRequest(params, SamplingState(), 0, 0) for params in (raw, processed)]
    first, second = score_drawn(sampler, logits.repeat(2, 1), requests, [1, 1])
    assert first.logprob == pytest.approx(torch.log_softmax(logits[0].double(), 0)[1].item())
    assert (first.rank, len(first.top)) == (2, 3)
    assert second.logprob == pytest.approx(-math.log1p(math.exp(-1.0)))
    assert second.rank == 1
    assert [each.token_id for each in second.top] == [1, 0]


def test_a_row_that_is_not_finite_is_named() -> None:
    logits = random_logits(3)
    logits[1, 3] = float("nan")
    with pytest.raises(SamplingError) as caught:
        score_tokens(logits, [0, 0, 0], vocab_size=VOCAB)
    assert caught.value.row == 1
    requests = [RowRequest(SamplingParams(), SamplingState(), 0, 0)] * 3
    with pytest.raises(SamplingError) as caught:
        list(score_drawn(Sampler(VOCAB, ()), logits, requests, [0, 0, 0]))
    assert caught.value.row == 1
