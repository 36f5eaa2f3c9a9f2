"""The single place where a token becomes output."""

from __future__ import annotations

import pytest

from slipstream.engine.messages import TokenLogprob
from slipstream.sampling.params import SamplingParams
from tests.support.engine import tiny_tokenizer
from tests.support.requests import make_request

EOS = 2


def tokens_of(text: str) -> list[int]:
    """One token per byte, whatever the merges say."""
    return [3 + byte for byte in text.encode()]


def output(text: str, params: SamplingParams) -> tuple[str, int, str | None, str | int | None]:
    """Text, number of tokens, finish and stop reason after saying `text` and then EOS."""
    request = make_request(params=params)
    for token in [*tokens_of(text), EOS]:
        if not request.accept_token(token):
            break
    event = request.take_event(0.0)
    assert event is not None
    return event.text, event.num_output_tokens, event.finish_reason, event.stop_reason


def test_tokens_become_text_and_eos_ends_it() -> None:
    assert output("abc", SamplingParams()) == ("abc", 4, "stop", None)


def test_the_length_limit_ends_the_output() -> None:
    assert output("abc", SamplingParams(max_tokens=2)) == ("ab", 2, "length", None)


def test_the_context_ends_the_output() -> None:
    request = make_request((10, 11, 12), SamplingParams(max_tokens=100), max_len=5)
    assert request.max_output == 2
    assert [request.accept_token(50), request.accept_token(51)] == [True, False]
    assert request.finish_reason == "length"


def test_a_stop_string_cuts_the_text_and_keeps_its_tokens() -> None:
    assert output("hello world", SamplingParams(stop=("lo w",))) == ("hel", 7, "stop", "lo w")


def test_a_stop_string_can_be_kept() -> None:
    params = SamplingParams(stop=("lo",), include_stop=True)
    assert output("hello", params) == ("hello", 5, "stop", "lo")


def test_what_only_began_like_a_stop_string_is_text() -> None:
    assert output("hello", SamplingParams(stop=("low",))) == ("hello", 6, "stop", None)


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert output("abcd", SamplingParams(stop=("bcd", "bc"))) == ("a", 3, "stop", "bc")


def test_a_stop_token_gives_no_text_unless_asked() -> None:
    stop = tokens_of("b")[0]
    assert output("abc", SamplingParams(stop_token_ids=(stop,))) == ("a", 2, "stop", stop)
    params = SamplingParams(stop_token_ids=(stop,), include_stop=True)
    assert output("abc", params) == ("ab", 2, "stop", stop)


def test_eos_can_be_ignored() -> None:
    request = make_request(params=SamplingParams(ignore_eos=True))
    assert request.accept_token(EOS)
    assert not request.is_finished


def test_stop_strings_are_not_sought_before_min_tokens() -> None:
    params = SamplingParams(stop=("a",), min_tokens=2)
    assert output("abca", params) == ("abc", 4, "stop", "a")


def test_a_character_appears_when_its_last_byte_does() -> None:
    request = make_request()
    texts = []
    for token in tokens_of("é😀"):
        request.accept_token(token)
        event = request.take_event(0.0)
        assert event is not None
        texts.append(event.text)
    assert texts == ["", "é", "", "", "", "😀"]


def test_an_event_holds_what_came_since_the_last_one() -> None:
    request = make_request(params=SamplingParams(logprobs=True))
    request.accept_token(50)
    request.accept_token(51)
    entry = TokenLogprob(50, -1.0, "", (), 1)
    request.add_logprobs([entry, entry])
    event = request.take_event(1.0)
    assert event is not None
    assert event.token_ids == (50, 51)
    assert event.logprobs == (entry, entry)
    assert event.finish_reason is None
    assert event.speculation is None
    assert request.take_event(2.0) is None
    request.accept_token(EOS)
    event = request.take_event(3.0)
    assert event is not None
    assert event.token_ids == (EOS,)
    assert event.num_output_tokens == 3
    assert event.speculation is not None


def test_times_count_from_arrival() -> None:
    request = make_request(arrival_s=10.0, params=SamplingParams(max_tokens=1))
    request.admitted_s, request.first_token_s = 11.0, 12.5
    request.accept_token(50)
    event = request.take_event(14.0)
    assert event is not None
    assert event.timings is not None
    assert event.timings.queue_s == 1.0
    assert event.timings.time_to_first_token_s == 2.5
    assert event.timings.end_to_end_s == 4.0


def test_choices_have_names_of_their_own() -> None:
    request = make_request(name="chat")
    assert request.request_id == "chat#0"
    assert request.submission_id == "chat"


@pytest.mark.parametrize("text", ["naïve café", "日本語", "a😀b", "\N{ZERO WIDTH JOINER}x"])
def test_all_text_together_is_the_decoded_output(text: str) -> None:
    request = make_request(params=SamplingParams(max_tokens=100))
    ids = tiny_tokenizer().encode(text)
    pieces = []
    for token in ids:
        request.accept_token(token)
        event = request.take_event(0.0)
        assert event is not None
        pieces.append(event.text)
        assert "\ufffd" not in event.text
    assert "".join(pieces) == tiny_tokenizer().decode(ids) == text
