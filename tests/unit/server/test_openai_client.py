"""The official client drives the service as its users do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from slipstream.engine.messages import Failed
from slipstream.server.app import create_app
from slipstream.server.context import Service
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.service import MODEL, in_loop, service_over

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def openai_client(service: Service, api_key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    """A client of the service's application, in this process, that does not retry."""
    # Any: newer clients are typed for httpx2 and take both.
    http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)))
    async with AsyncOpenAI(
        api_key=api_key, base_url="http://test/v1", http_client=http, max_retries=0
    ) as client:
        yield client


@in_loop
async def test_chat() -> None:
    async with openai_client(service_over(FakeEngine(text_reply("Hello!")))) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.system_fingerprint == "fp_fake"


@in_loop
async def test_streamed_chat_with_usage() -> None:
    async with openai_client(service_over(FakeEngine(text_reply("Hello!")))) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


@in_loop
async def test_logprobs_of_chat_and_completions() -> None:
    async with openai_client(service_over(FakeEngine(text_reply("ab")))) as client:
        chat = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        completion = await client.completions.create(model=MODEL, prompt="x", logprobs=2)
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    first = chat.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("a", [97], 2)
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.tokens == ["a", "b", "</s>"]


@in_loop
async def test_seed_and_n_and_extensions_through_extra_body() -> None:
    extra = {"speculation": {"enabled": False}, "top_k": 5}
    engine = FakeEngine()
    async with openai_client(service_over(engine)) as client:
        answers = [
            await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, seed=9, n=2, extra_body=extra
            )
            for _ in range(2)
        ]
    texts = [[choice.message.content for choice in answer.choices] for answer in answers]
    assert texts == [["9/0", "9/1"]] * 2
    assert engine.submitted[0].speculation.enabled is False
    assert engine.submitted[0].params.top_k == 5
    metrics = answers[0].model_extra["metrics"] if answers[0].model_extra else {}
    assert metrics["speculative_decoding"]["mean_acceptance_length"] == 2.5


@in_loop
async def test_streamed_completion_with_echo() -> None:
    async with openai_client(service_over(FakeEngine(text_reply("!")))) as client:
        stream = await client.completions.create(model=MODEL, prompt="Hi", echo=True, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == "Hi!"


@in_loop
async def test_models_are_listed_and_found_by_a_name_with_a_slash() -> None:
    async with openai_client(service_over(FakeEngine())) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "slipstream"


@in_loop
async def test_errors_arrive_as_the_clients_own_types() -> None:
    async with openai_client(service_over(FakeEngine(), api_keys=("k",)), "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with openai_client(service_over(FakeEngine(), api_keys=("k",)), "k") as client:
        with pytest.raises(openai.NotFoundError) as not_found:
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    assert not_found.value.code == "model_not_found"
    assert bad.value.param == "temperature"


@in_loop
async def test_a_failure_in_a_stream_raises_in_the_client() -> None:
    failure = Failed("", "EngineFailureError", "the engine process died")
    engine = FakeEngine(text_reply("abcdef"), failure=failure, fail_after=2)
    async with openai_client(service_over(engine)) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the engine process died"):
            _ = [chunk async for chunk in stream]
