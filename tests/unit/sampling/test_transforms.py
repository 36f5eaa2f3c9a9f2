"""Processors and filters do what each says, in the fixed order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import InvalidRequestError
from slipstream.sampling.noise import FloatArray
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import Processors
from slipstream.sampling.state import advance, initial_state
from slipstream.sampling.transforms import best_ids, first_ids, kept_ids, largest, temper
from tests.support import sampling as oracle
from tests.support.words import started, text_of

EOS = 0


def process(
    logits: list[float],
    params: SamplingParams,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
) -> list[float]:
    row = np.array(logits, dtype=np.float32)
    before = row.copy()
    state = started(params, prompt)
    for token in output:
        state = advance(params, state, token)
    result = Processors(params, row.size, [EOS]).apply(row, state, np.empty_like(row))
    np.testing.assert_array_equal(row, before)
    values: list[float] = result.tolist()
    return values


def log_weights(probs: list[float], temperature: float = 1.0) -> FloatArray:
    logits = np.log(np.array(probs)).astype(np.float32)
    return temper(logits, logits.max(), temperature, np.empty_like(logits))


def kept(probs: list[float], params: SamplingParams) -> list[int]:
    ids = kept_ids(log_weights(probs), params)
    assert ids is not None
    result: list[int] = ids.tolist()
    return result


def test_repetition_penalty_moves_prompt_and_output_tokens_towards_refusal() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert process([4.0, -4.0, 4.0, -4.0], params, (0, 1), (0,)) == [2.0, -8.0, 4.0, -4.0]


def test_presence_and_frequency_penalties_look_at_output_only() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    assert process([5.0, 5.0, 5.0], params, (0,), (1, 2, 2)) == [5.0, 3.5, 3.0]


def test_negative_penalties_encourage_repetition() -> None:
    params = SamplingParams(presence_penalty=-1.0, frequency_penalty=-1.0)
    assert process([0.0, 0.0], params, (), (1,)) == [0.0, 2.0]


def test_repetition_penalty_comes_before_the_other_penalties_and_the_bias() -> None:
    params = SamplingParams(
        repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0, logit_bias={1: 0.5}
    )
    assert process([0.0, 4.0], params, (), (1, 1)) == [0.0, 4.0 / 2 - 1 - 2 + 0.5]


def test_a_single_bad_word_is_always_banned() -> None:
    assert process([1.0, 2.0], SamplingParams(bad_words=(text_of(1),))) == [1.0, -np.inf]


def test_a_long_bad_word_is_banned_only_after_its_beginning() -> None:
    params = SamplingParams(bad_words=(text_of(1, 2, 3),))
    banned = [0.0, 0.0, 0.0, -np.inf]
    assert process([0.0] * 4, params, (), (1, 2)) == banned
    assert process([0.0] * 4, params, (1,), (2,)) == banned
    assert process([0.0] * 4, params, (), (2, 2)) == [0.0] * 4
    assert process([0.0] * 4, params, (), (2,)) == [0.0] * 4
    assert process([0.0] * 4, params, (), (1, 2, 3)) == [0.0] * 4


def test_bad_words_of_different_lengths_each_match_their_own_beginning() -> None:
    params = SamplingParams(bad_words=(text_of(1, 2, 3), text_of(2, 0)))
    assert process([0.0] * 4, params, (), (1, 2)) == [-np.inf, 0.0, 0.0, -np.inf]


def test_only_allowed_tokens_are_left() -> None:
    params = SamplingParams(allowed_token_ids=(2, 0, 2))
    assert process([1.0, 2.0, 3.0], params) == [1.0, -np.inf, 3.0]


def test_bias_does_not_bring_back_a_banned_token() -> None:
    params = SamplingParams(logit_bias={1: 100.0}, bad_words=(text_of(1),))
    assert process([1.0, 2.0], params) == [1.0, -np.inf]


def test_min_tokens_bans_eos_and_stop_tokens_until_then() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=(2,), ignore_eos=True)
    assert process([1.0, 1.0, 1.0], params, (), (1,)) == [-np.inf, 1.0, -np.inf]
    assert process([1.0, 1.0, 1.0], params, (), (1, 1)) == [1.0, 1.0, 1.0]


def test_nothing_to_do_copies_nothing() -> None:
    row = np.zeros(4, dtype=np.float32)
    params = SamplingParams(temperature=0.5, top_k=2)
    state = initial_state(params, [1])
    assert Processors(params, 4, [EOS]).apply(row, state, np.empty_like(row)) is row


def test_an_unknown_token_is_refused_when_prepared() -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias names token 4"):
        Processors(SamplingParams(logit_bias={4: 1.0}), 4, [EOS])


def test_prompt_tokens_beyond_the_vocabulary_are_not_penalised() -> None:
    assert process([2.0, 2.0], SamplingParams(repetition_penalty=2.0), (1, 7)) == [2.0, 1.0]


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.5, 1.0, 100.0])
def test_no_temperature_overflows(temperature: float) -> None:
    logits = np.array([1e30, -1e30, 3e38, -np.inf], dtype=np.float32)
    with np.errstate(over="ignore"):
        weights = temper(logits, logits.max(), temperature, np.empty_like(logits))
    assert weights[2] == 0.0
    assert not np.isnan(weights).any()


def test_no_filter_keeps_everything_without_a_list() -> None:
    weights = log_weights([0.5, 0.3, 0.2])
    assert kept_ids(weights, SamplingParams()) is None
    assert kept_ids(weights, SamplingParams(top_k=3)) is None


def test_top_k_takes_the_lowest_ids_of_a_tie() -> None:
    assert kept([0.1, 0.2, 0.3, 0.2, 0.2], SamplingParams(top_k=3)) == [1, 2, 3]


def test_top_p_keeps_the_token_that_crosses_the_limit() -> None:
    probs = [0.125, 0.5, 0.25, 0.125]
    assert kept(probs, SamplingParams(top_p=0.4)) == [1]
    assert kept(probs, SamplingParams(top_p=0.5)) == [1]
    assert kept(probs, SamplingParams(top_p=0.51)) == [1, 2]
    assert kept(probs, SamplingParams(top_p=0.8)) == [0, 1, 2]
    assert kept(probs, SamplingParams(top_p=0.9)) == [0, 1, 2, 3]


def test_top_p_never_keeps_nothing() -> None:
    assert kept([0.4, 0.6], SamplingParams(top_p=1e-9)) == [1]


def test_min_p_is_relative_to_the_best_token() -> None:
    assert kept([0.05, 0.5, 0.35, 0.1], SamplingParams(min_p=0.5)) == [1, 2]
    assert kept([0.1, 0.3, 0.3, 0.3], SamplingParams(min_p=1.0)) == [1, 2, 3]


def test_top_p_counts_what_top_k_and_min_p_left() -> None:
    probs = [0.4, 0.3, 0.2, 0.1]
    assert kept(probs, SamplingParams(top_p=0.55)) == [0, 1]
    assert kept(probs, SamplingParams(top_p=0.55, top_k=2)) == [0]
    assert kept(probs, SamplingParams(top_p=0.55, min_p=0.7)) == [0]
    assert kept(probs, SamplingParams(top_p=0.6, top_k=2, min_p=0.7)) == [0, 1]


def test_filters_drop_banned_tokens() -> None:
    weights = np.array([-np.inf, 0.0, -np.inf, -1.0], dtype=np.float32)
    for params in (
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.999999),
        SamplingParams(min_p=1e-9),
        SamplingParams(top_k=3, top_p=0.99, min_p=1e-6),
    ):
        ids = kept_ids(weights, params)
        assert ids is not None
        assert ids.tolist() == [1, 3]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_filters_agree_with_the_oracle(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 40))
    eighths = st.integers(-40, 40).map(lambda value: value / 8)
    logits = data.draw(st.lists(eighths, min_size=size, max_size=size))
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, size + 1)),
        top_p=data.draw(st.sampled_from([1.0, 0.99, 0.9, 0.51, 0.2])),
        min_p=data.draw(st.sampled_from([0.0, 0.011, 0.21, 0.9])),
    )
    probs, margin = oracle.filtered_probs(logits, params)
    row = np.array(logits, dtype=np.float32)
    weights = temper(row, row.max(), params.temperature, np.empty_like(row))
    ids = kept_ids(weights, params)
    if margin > 1e-5:
        expected = [token for token, prob in enumerate(probs) if prob > 0]
        assert (list(range(size)) if ids is None else ids.tolist()) == expected


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0, 15.0])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.9999, 0.9999999])
def test_top_p_on_a_large_vocabulary_equals_a_full_sort(spread: float, top_p: float) -> None:
    rng = np.random.default_rng(3)
    row = np.round(rng.normal(size=20_000) * spread * 16).astype(np.float32) / 16  # many ties
    weights = row - row.max()
    order = np.argsort(-weights, kind="stable")
    cumulative = np.cumsum(np.exp(weights)[order], dtype=np.float64)
    total = float(np.exp(weights).sum(dtype=np.float64))
    length = min(int(np.searchsorted(cumulative, top_p * total)) + 1, row.size)
    ids = kept_ids(weights, SamplingParams(top_p=top_p))
    assert ids is not None
    np.testing.assert_array_equal(ids, np.sort(order[:length]))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-3, 3) | st.just(-np.inf), min_size=1, max_size=60),
    count=st.integers(1, 70),
)
def test_best_ids_sort_by_value_then_id(values: list[float], count: int) -> None:
    row = np.array(values, dtype=np.float32)
    order = sorted(range(row.size), key=lambda token: (-row[token], token))
    expected = [token for token in order if row[token] > -np.inf][:count]
    assert best_ids(row, count).tolist() == expected
    assert largest(row, count).tolist() == [row[token] for token in order[:count]]
    if expected:
        chosen = first_ids(row, row[expected[-1]], len(expected))
        assert chosen.tolist() == sorted(expected)
