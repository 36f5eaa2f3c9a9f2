"""Parameters are checked when they are built; the state remembers only what they ask for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from slipstream.errors import InvalidRequestError
from slipstream.sampling.params import SamplingParams, check_token_ids
from slipstream.sampling.state import advance, initial_state
from tests.support.words import started, text_of


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("max_tokens", 0),
        ("min_tokens", 257),
        ("top_logprobs", 21),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", {3: 101.0}),
        ("logit_bias", {3: math.nan}),
        ("allowed_token_ids", ()),
        ("bad_words", ("",)),
        ("bad_words", ((1, 2),)),
        ("bad_words", (b"no",)),
        ("bad_words", "no"),
        ("bad_words", ("\ufffd",)),
        ("stop", ("",)),
        ("stop", ("ok", "x" * 1025)),
        ("logprobs_mode", "cooked"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:  # any wrong
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in caught.value.message


def test_large_whole_numbers_are_shown_with_all_their_digits() -> None:
    with pytest.raises(InvalidRequestError, match="at most 18446744073709551615, got 18446744073"):
        SamplingParams(seed=2**64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {10: 1.0}),
        ("allowed_token_ids", (1, -1)),
        ("stop_token_ids", (11,)),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused_by_name(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    with pytest.raises(InvalidRequestError, match="tokens are 0 to 9") as caught:
        check_token_ids(params, vocab_size=10)
    assert caught.value.param == name


def test_tokens_inside_the_vocabulary_are_accepted() -> None:
    params = SamplingParams(logit_bias={0: 1.0, 9: -1.0}, allowed_token_ids=(0, 9))
    check_token_ids(params, vocab_size=10)


def test_a_temperature_too_small_to_matter_is_greedy() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1e-3).is_greedy


def test_state_is_the_same_object_when_nothing_is_remembered() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9)
    state = initial_state(params, [1, 2, 3])
    assert advance(params, state, 5) is state


def test_advance_leaves_the_old_state_untouched() -> None:
    params = SamplingParams(frequency_penalty=0.5)
    first = advance(params, initial_state(params, [1]), 5)
    second = advance(params, first, 5)
    assert first.output_counts == {5: 1}
    assert second.output_counts == {5: 2}
    assert (first.num_output, second.num_output) == (1, 2)


def test_counts_are_kept_only_for_penalties() -> None:
    params = SamplingParams(min_tokens=3)
    state = advance(params, initial_state(params, [1]), 5)
    assert state.output_counts == {}
    assert state.num_output == 1


def test_the_prompt_is_remembered_only_for_the_repetition_penalty() -> None:
    assert initial_state(SamplingParams(presence_penalty=1.0), [1, 2]).prompt_tokens == frozenset()
    repeating = SamplingParams(repetition_penalty=1.2)
    assert initial_state(repeating, [1, 2, 1]).prompt_tokens == frozenset({1, 2})


def test_a_state_remembers_what_its_text_has_begun_of_a_bad_word() -> None:
    params = SamplingParams(bad_words=(text_of(1, 2, 3), text_of(4)))
    state = started(params, [7, 1])
    assert state.tail.decode() == text_of(1)
    assert advance(params, state, 2).tail.decode() == text_of(1, 2)
    assert advance(params, state, 5).tail == b""


def test_bad_words_without_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="prepared"):
        initial_state(SamplingParams(bad_words=("no",)), [1])


def test_a_bad_word_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        SamplingParams(bad_words=("ok", "\ud800"))


def test_old_bad_words_of_token_ids_are_refused_with_what_to_give_instead() -> None:
    with pytest.raises(InvalidRequestError, match="sequences of token ids are not taken") as caught:
        SamplingParams(bad_words=((5, 6),))  # type: ignore[arg-type]  # the form of before
    assert caught.value.hint == "give the text of the word"
