"""What a body must look like to become a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import InvalidRequestError, RequestError, UnsupportedParameterError
from slipstream.protocol.json_body import parse_object
from slipstream.protocol.requests import read_chat_request, read_completion_request
from tests.support.service import chat_body, completion_body


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": float("nan")}, "temperature", "must be a finite number, got NaN"),
        ({"temperature": float("inf")}, "temperature", "must be a finite number, got Infinity"),
        ({"temperature": "hot"}, "temperature", 'must be a number, got "hot"'),
        ({"temperature": True}, "temperature", "must be a number, got true"),
        ({"n": True}, "n", "must be an integer, got true"),
        ({"n": 0}, "n", "n must be from 1 to 128, got 0"),
        ({"n": -3}, "n", "got -3"),
        ({"n": 10**6}, "n", "n must be from 1 to 128, got 1000000"),
        ({"max_tokens": 1.5}, "max_tokens", "must be an integer, got 1.5"),
        ({"max_tokens": 10**40}, "max_tokens", "must be from 0 to 2147483647, got 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"seed": 2**64}, "seed", "must be from -9223372036854775808 to 18446744073709551615"),
        ({"stream": "yes"}, "stream", 'must be true or false, got "yes"'),
        ({"stop": [1]}, "stop", "must be a string or a list of strings"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings, got 17"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object"),
        ({"logit_bias": {"dog": 1}}, "logit_bias", 'keys are token ids such as "50256"'),
        ({"logit_bias": {"٣": 1}}, "logit_bias", "keys are token ids"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "must be a finite number"),
        ({"logit_bias": {"1": 10**400}}, "logit_bias", "must be a finite number"),
        ({"stream_options": {}}, "stream_options", "needs stream: true"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "cannot be streamed"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]", "from 0 to 2147483647, got -1"),
        ({"timeout": 0}, "timeout", "must be above 0 and at most 86400, got 0"),
        ({"priority": 10**9}, "priority", "must be from -1000 to 1000, got 1000000000"),
        ({"cache_salt": ""}, "cache_salt", "must have 1 to 1024 characters, got 0"),
        ({"logprobs_mode": "cooked"}, "logprobs_mode", "'raw' or 'processed'"),
        ({"speculation": {"enabld": True}}, "enabld", 'in speculation; did you mean "enabled"'),
        (
            {"speculation": {"max_draft_len": -1}},
            "speculation.max_draft_len",
            "from 0 to 1024, got -1",
        ),
    ],
)
def test_an_impossible_value_is_refused_by_name(
    fields: dict[str, Any], param: str, message: str
) -> None:
    for read, body in (
        (read_chat_request, chat_body(**fields)),
        (read_completion_request, completion_body(**fields)),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            read(body)
        assert caught.value.param == param
        assert message in caught.value.message


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages must be a list"),
        ([], "at least 1 item"),
        (["hello"], "messages[0] must be an object"),
        ([{"content": "hi"}], "messages[0].role is required"),
        ([{"role": "user"}], "messages[0].content is required"),
        ([{"role": "king", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "content is required"),
        ([{"role": "user", "content": []}], "must be a string or a list of text parts"),
        ([{"role": "user", "content": ["hi"]}], "a content part must be"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "a content part must be"),
        ([{"role": "user", "content": "hi", "contents": 1}], 'did you mean "content"'),
    ],
)
def test_malformed_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_chat_request({"model": "m", "messages": messages})
    assert message in caught.value.message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "4", "tool_call_id": "x"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_tools_and_media_in_messages_are_refused_as_unsupported(message: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameterError):
        read_chat_request({"model": "m", "messages": [message]})


def test_an_answer_of_this_server_can_be_sent_back_as_history() -> None:
    answer = {"role": "assistant", "content": "Hi!", "refusal": None, "tool_calls": None}
    request = read_chat_request(chat_body(messages=[{"role": "user", "content": "a"}, answer]))
    assert request.messages[1].as_template_input() == {"role": "assistant", "content": "Hi!"}


def test_text_parts_are_joined_and_developer_speaks_as_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = read_chat_request(chat_body(messages=[{"role": "developer", "content": parts}]))
    assert request.messages[0].as_template_input() == {"role": "system", "content": "a\nb"}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ("ab",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_a_prompt_comes_in_four_shapes(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert read_completion_request(completion_body(prompt=prompt)).prompt == expected


@pytest.mark.parametrize("prompt", [[], {}, 7, ["a", 1], [1, [2]], [True], [1.0], [-1], [2**40]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_completion_request(completion_body(prompt=prompt))
    assert caught.value.param == "prompt"


def test_choices_are_limited_over_all_prompts() -> None:
    with pytest.raises(InvalidRequestError, match="at most 128, got 129"):
        read_completion_request(completion_body(prompt=["x"] * 43, n=3))


def test_max_tokens_zero_is_allowed_to_score_a_prompt() -> None:
    assert read_completion_request(completion_body(max_tokens=0, echo=True)).max_tokens == 0


def test_two_different_output_limits_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="one limit"):
        read_chat_request(chat_body(max_tokens=3, max_completion_tokens=4))


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(InvalidRequestError, match="needs logprobs: true"):
        read_chat_request(chat_body(top_logprobs=2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": "\xff"}', "byte 7 is not"),
        ('{"a": "ü"}'.encode("utf-16"), "must be UTF-8"),
        (b"[" * 5000 + b"]" * 5000, "200 levels deep"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "200 levels deep"),
        (b"[]", "must be a JSON object, got list"),
        (b"null", "must be a JSON object"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_body_that_is_no_json_object_says_where_it_is_wrong(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_object(body)
    assert message in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda child: (
        st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=8), child, max_size=3)
    ),
    max_leaves=8,
)
NAMES = [*chat_body(), "prompt", "n", "stop", "temperature", "logit_bias", "stream_options", "seed"]


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, max_size=4))
def test_any_object_gives_a_request_or_a_request_error(fields: dict[str, Any]) -> None:
    for read, body in (
        (read_chat_request, chat_body(**fields)),
        (read_completion_request, completion_body(**fields)),
    ):
        try:
            read(body)
        except RequestError as error:
            assert error.status == 400  # noqa: PT017 - any outcome is fine but another error
