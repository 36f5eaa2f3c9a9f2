"""Every failure is a typed answer of the OpenAI API's shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.server import ServerConfig
from slipstream.engine.client import RequestEvent
from slipstream.engine.messages import Failed, PromptDone, Submit
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.service import (
    chat_body,
    client_of,
    completion_body,
    events_of,
    in_loop,
    service_over,
)

JSON_TYPE = {"content-type": "application/json"}


def assert_error(body: Any, code: str) -> dict[str, Any]:
    """`body` is an OpenAI error body; returns its error."""
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] == code
    return error


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("chat/completions", chat_body(model="other"), 404, "model_not_found", "model"),
        ("chat/completions", {"messages": []}, 400, "invalid_request", "model"),
        ("chat/completions", chat_body(tools=[{"x": 1}]), 400, "unsupported_parameter", "tools"),
        ("chat/completions", chat_body(temperature=-1), 400, "invalid_request", "temperature"),
        ("chat/completions", chat_body(top_p=0), 400, "invalid_request", "top_p"),
        (
            "chat/completions",
            chat_body(logit_bias={"260": 1}),
            400,
            "invalid_request",
            "logit_bias",
        ),
        (
            "chat/completions",
            chat_body(stop_token_ids=[999]),
            400,
            "invalid_request",
            "stop_token_ids",
        ),
        ("chat/completions", chat_body(bad_words=[""]), 400, "invalid_request", "bad_words[0]"),
        ("completions", completion_body(bad_words=["\ufffd"]), 400, "invalid_request", "bad_words"),
        ("completions", completion_body(bad_words=[[5]]), 400, "invalid_request", "bad_words[0]"),
        (
            "chat/completions",
            chat_body(speculation={"drafters": ["x"]}),
            400,
            "invalid_request",
            "speculation",
        ),
        (
            "chat/completions",
            chat_body(max_tokens=5, min_tokens=6),
            400,
            "invalid_request",
            "min_tokens",
        ),
        (
            "chat/completions",
            chat_body(max_tokens=10**6),
            400,
            "context_length_exceeded",
            "max_tokens",
        ),
        (
            "chat/completions",
            chat_body(speculation={"enabled": True, "max_draft_len": 0}),
            400,
            "invalid_request",
            "speculation",
        ),
        (
            "chat/completions",
            chat_body(speculation={"enabled": True, "drafters": []}),
            400,
            "invalid_request",
            "speculation",
        ),
        ("chat/completions", chat_body(n=9), 400, "invalid_request", "n"),
        ("completions", completion_body(prompt=["x"] * 9), 400, "invalid_request", "prompt"),
        ("completions", completion_body(prompt=["x"] * 5, n=2), 400, "invalid_request", "n"),
        ("completions", completion_body(prompt=["x"] * 4, n=2), 200, "", None),
        *(
            (path, body(**field), 400, "invalid_request", next(iter(field)))
            for path, body in (("chat/completions", chat_body), ("completions", completion_body))
            for field in (
                {"logprobs_mode": "processed"},
                {"return_tokens_as_token_ids": True},
                {"logit_bias": {"07": 1.0}},
            )
        ),
        (
            "completions",
            completion_body(prompt_logprobs=0, return_tokens_as_token_ids=True),
            400,
            "invalid_request",
            "return_tokens_as_token_ids",
        ),
        (
            "chat/completions",
            chat_body(logprobs=False, logprobs_mode="raw", return_tokens_as_token_ids=False),
            200,
            "",
            None,
        ),
        (
            "completions",
            completion_body(prompt_logprobs=0, logprobs_mode="processed"),
            200,
            "",
            None,
        ),
        (
            "chat/completions",
            chat_body(stream=True, stream_options={"include_usage": None}),
            200,
            "",
            None,
        ),
        (
            "chat/completions",
            chat_body(chat_template_kwargs={"messages": []}),
            400,
            "invalid_request",
            "chat_template_kwargs",
        ),
        (
            "chat/completions",
            chat_body(messages=[{"role": "assistant", "content": "x"}]),
            400,
            "invalid_request",
            "messages",
        ),
        (
            "completions",
            completion_body(prompt="x" * 199),
            400,
            "context_length_exceeded",
            "prompt",
        ),
        ("completions", completion_body(prompt=[260]), 400, "invalid_request", "prompt"),
        ("completions", completion_body(prompt=""), 200, "", None),
        (
            "completions",
            completion_body(prompt="", add_special_tokens=False),
            400,
            "invalid_request",
            "prompt",
        ),
        ("completions", completion_body(prompt=[[1], []]), 400, "invalid_request", "prompt"),
        ("completions", completion_body(suffix="x"), 400, "unsupported_parameter", "suffix"),
    ],
)
@in_loop
async def test_a_bad_request_is_refused_with_status_code_and_param(
    path: str, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    engine = FakeEngine()
    async with client_of(service_over(engine)) as client:
        response = await client.post(f"/v1/{path}", json=body)
    assert response.status_code == status, response.text
    if status != 200:
        assert assert_error(response.json(), code)["param"] == param
        assert engine.submitted == []


@in_loop
async def test_one_output_token_must_fit_beside_the_prompt() -> None:
    engine = FakeEngine(max_model_len=4)
    async with client_of(service_over(engine)) as client:
        fits = await client.post("/v1/completions", json=completion_body(prompt=[1, 2, 3]))
        full = await client.post("/v1/completions", json=completion_body(prompt=[1, 2, 3, 4]))
    assert fits.json()["usage"]["completion_tokens"] == 1
    error = assert_error(full.json(), "context_length_exceeded")
    assert "4 tokens; this model's context is 4 tokens" in error["message"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1]", b'{"model": "\\ud800"}', b"[" * 100_000]
)
@in_loop
async def test_a_body_that_is_no_json_object_gets_400(content: bytes) -> None:
    async with client_of(service_over(FakeEngine())) as client:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            response = await client.post(path, content=content, headers=JSON_TYPE)
            assert response.status_code == 400
            assert_error(response.json(), "invalid_request")


@in_loop
async def test_a_body_that_is_not_declared_as_json_is_refused() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        body = json.dumps(chat_body())
        response = await client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "text/plain"}
        )
    assert response.status_code == 400
    assert "Content-Type" in assert_error(response.json(), "invalid_request")["message"]


@in_loop
async def test_an_oversized_body_is_not_read_to_its_end() -> None:
    service = service_over(FakeEngine(), config=ServerConfig(max_body_bytes=1024))
    num_sent = 0

    async def body() -> AsyncGenerator[bytes, None]:
        nonlocal num_sent
        while num_sent < 100:
            num_sent += 1
            yield b" " * 512

    async with client_of(service) as client:
        declared = await client.post("/tokenize", content=b" " * 2000, headers=JSON_TYPE)
        streamed = await client.post("/tokenize", content=body(), headers=JSON_TYPE)
    for response in (declared, streamed):
        assert response.status_code == 413
        assert_error(response.json(), "request_too_large")
    assert num_sent < 5


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_url"),
        ("POST", "/v1/embeddings", 404, "unknown_url"),
        ("GET", "/health/", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
@in_loop
async def test_a_wrong_url_or_method_has_an_error_body(
    method: str, path: str, status: int, code: str
) -> None:
    async with client_of(service_over(FakeEngine())) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert_error(response.json(), code)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ("QueueFullError", 429, "queue_full"),
        ("RequestTimeoutError", 408, "request_timeout"),
        ("EngineFailureError", 500, "engine_failure"),
        ("EngineUnavailableError", 503, "engine_unavailable"),
        ("RequestCancelledError", 503, "engine_unavailable"),
        ("ContextLengthError", 400, "context_length_exceeded"),
        ("SlipstreamError", 500, "engine_failure"),
        ("nonsense", 500, "engine_failure"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_refusal_of_the_engine_keeps_its_status(
    error: str, status: int, code: str, stream: bool
) -> None:
    engine = FakeEngine(failure=Failed("", error, "because", hint="do this"))
    async with client_of(service_over(engine)) as client:
        response = await client.post("/v1/chat/completions", json=chat_body(stream=stream))
    assert response.status_code == status
    assert "because" in assert_error(response.json(), code)["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))


@in_loop
async def test_a_failure_in_the_middle_of_a_stream_is_an_event_and_ends_it() -> None:
    failure = Failed("", "EngineFailureError", "the engine process died")
    engine = FakeEngine(text_reply("abcdefgh"), failure=failure, fail_after=2)
    async with client_of(service_over(engine)) as client:
        response = await client.post("/v1/chat/completions", json=chat_body(stream=True))
    assert response.status_code == 200
    *_, text, error, done = events_of(response.text)
    assert text["choices"][0]["delta"] == {"content": "abc"}
    assert assert_error(error, "engine_failure")["message"] == "the engine process died"
    assert done == "[DONE]"


@in_loop
async def test_one_failing_prompt_fails_the_request_and_cancels_the_others() -> None:
    class PartlyFailing(FakeEngine):
        async def submit(self, request: Submit) -> AsyncGenerator[RequestEvent, None]:
            if request.prompt == (2,):
                yield Failed(request.request_id, "QueueFullError", "full")
                return
            self.gate.clear()
            async for event in super().submit(request):
                yield event

    engine = PartlyFailing()
    async with client_of(service_over(engine)) as client:
        body = completion_body(prompt=[[1], [2], [3]])
        response = await client.post("/v1/completions", json=body)
    assert response.status_code == 429
    assert engine.num_running == 0
    assert len(engine.cancelled) == 2


@in_loop
async def test_an_engine_that_ends_too_early_is_reported_not_waited_for() -> None:
    class Truncated(FakeEngine):
        async def submit(self, request: Submit) -> AsyncGenerator[RequestEvent, None]:
            yield PromptDone(request.request_id, 1, 0)

    async with client_of(service_over(Truncated())) as client:
        response = await client.post("/v1/chat/completions", json=chat_body())
    assert response.status_code == 500
    assert_error(response.json(), "engine_failure")


@in_loop
async def test_a_fault_of_the_server_is_logged_and_told_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_submit: Submit, _index: int) -> list[int]:
        raise ZeroDivisionError("secret")

    async with client_of(service_over(FakeEngine(broken))) as client:
        with caplog.at_level(logging.ERROR):
            response = await client.post(
                "/v1/chat/completions", json=chat_body(), headers={"x-request-id": "r-1"}
            )
    assert response.status_code == 500
    message = assert_error(response.json(), "internal_error")["message"]
    assert "secret" not in message
    assert "r-1" in message
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_request_past_its_deadline_is_cancelled_with_408(stream: bool) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with client_of(service_over(engine)) as client:
        body = chat_body(timeout=0.05, stream=stream)
        response = await asyncio.wait_for(client.post("/v1/chat/completions", json=body), 5)
    assert response.status_code == 408
    assert_error(response.json(), "request_timeout")
    assert len(engine.cancelled) == 1


@in_loop
async def test_the_servers_limit_holds_for_requests_that_name_none() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    service = service_over(engine, config=ServerConfig(request_timeout_s=0.05))
    async with client_of(service) as client:
        response = await client.post("/v1/completions", json=completion_body(prompt=["a", "b"]))
    assert response.status_code == 408
    assert len(engine.cancelled) == 2


@in_loop
async def test_chat_without_a_template_is_refused_and_completions_work() -> None:
    async with client_of(service_over(FakeEngine(), has_template=False)) as client:
        chat = await client.post("/v1/chat/completions", json=chat_body())
        completion = await client.post("/v1/completions", json=completion_body())
    assert "no chat template" in assert_error(chat.json(), "unsupported_parameter")["message"]
    assert completion.status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda child: (
        st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=8), child, max_size=3)
    ),
    max_leaves=6,
)
NAMES = [
    *("messages", "prompt", "n", "stop", "temperature", "logit_bias", "stream", "stream_options"),
    *("seed", "max_tokens", "top_logprobs", "logprobs", "echo", "bad_words", "speculation"),
    *("chat_template_kwargs", "allowed_token_ids", "timeout", "min_tokens", "prompt_logprobs"),
]
SMALL = st.sampled_from([0, 1, 2, 5, True, "x", [1], ["a"], {"1": 1}, {"enabled": True}, None])


@settings(deadline=None, max_examples=120)
@given(
    fields=st.dictionaries(st.sampled_from(NAMES), SMALL | JSON, max_size=4),
    path=st.sampled_from(["chat/completions", "completions"]),
    noise=st.none() | st.binary(max_size=4),
)
def test_any_body_gets_an_answer_or_a_typed_refusal(
    fields: dict[str, Any], path: str, noise: bytes | None
) -> None:
    base = chat_body() if path.startswith("chat") else completion_body()
    content = json.dumps({**base, **fields}).encode() + (noise or b"")

    async def scenario() -> None:
        async with client_of(service_over(FakeEngine())) as client:
            response = await client.post(f"/v1/{path}", content=content, headers=JSON_TYPE)
        if response.status_code == 200:
            is_stream = response.headers["content-type"].startswith("text/event-stream")
            assert "error" not in (str(events_of(response.text)) if is_stream else response.json())
        else:
            assert 400 <= response.status_code < 500, response.text
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "param"),
    [({}, "messages"), ({"max_completion_tokens": 99}, "max_completion_tokens")],
)
@in_loop
async def test_a_chat_over_the_context_names_the_field_that_the_client_sent(
    fields: dict[str, int], param: str
) -> None:
    size = 64 if fields else 2
    async with client_of(service_over(FakeEngine(max_model_len=size))) as client:
        response = await client.post("/v1/chat/completions", json=chat_body(**fields))
    assert assert_error(response.json(), "context_length_exceeded")["param"] == param
