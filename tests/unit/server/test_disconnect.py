"""A client that leaves takes its work with it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from slipstream.server.app import create_app
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.service import (
    RawCall,
    chat_body,
    completion_body,
    in_loop,
    service_over,
)


async def until(condition: Any) -> None:
    """Let the loop turn until `condition()` holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the fake has no event for each of its moments
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body()),
        ("/v1/completions", completion_body()),
        ("/v1/completions", completion_body(prompt=["a", "b", "c"])),
    ],
)
@in_loop
async def test_leaving_before_the_first_token_cancels_every_prompt(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    service = service_over(engine)
    call = RawCall(create_app(service), path, json.dumps({**body, "stream": stream}).encode())
    task = asyncio.create_task(call.run())
    await until(lambda: engine.submitted)
    call.has_left.set()
    await asyncio.wait_for(task, 5)
    assert engine.num_running == 0
    assert len(engine.cancelled) == len(engine.submitted)
    assert service.lifecycle.num_in_flight == 0
    assert b"slipstream_client_disconnects_total 1.0" in service.metrics.exposition()


@in_loop
async def test_leaving_in_the_middle_of_a_stream_cancels() -> None:
    engine = FakeEngine(text_reply("a long answer " * 10), tokens_per_step=1)
    service = service_over(engine)
    call = RawCall(
        create_app(service), "/v1/chat/completions", json.dumps(chat_body(stream=True)).encode()
    )
    task = asyncio.create_task(call.run())
    await until(lambda: len(call.messages) > 3)
    engine.gate.clear()
    call.has_left.set()
    await asyncio.wait_for(task, 5)
    assert engine.cancelled == [engine.submitted[0].request_id]
    assert engine.num_running == 0


@in_loop
async def test_a_client_that_stays_gets_everything() -> None:
    engine = FakeEngine(text_reply("answer"))
    call = RawCall(
        create_app(service_over(engine)),
        "/v1/chat/completions",
        json.dumps(chat_body(stream=True)).encode(),
    )
    await asyncio.wait_for(call.run(), 5)
    assert engine.cancelled == []
    assert call.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert call.messages[-2]["body"] == b"data: [DONE]\n\n"


@in_loop
async def test_a_send_that_fails_cancels_too() -> None:
    engine = FakeEngine(text_reply("a long answer " * 10), tokens_per_step=1)

    class BrokenPipe(RawCall):
        async def _send(self, message: Any) -> None:
            if len(self.messages) > 3:
                raise OSError("broken pipe")
            await super()._send(message)

    call = BrokenPipe(
        create_app(service_over(engine)),
        "/v1/chat/completions",
        json.dumps(chat_body(stream=True)).encode(),
    )
    await asyncio.wait_for(call.run(), 5)
    assert engine.num_running == 0
    assert len(engine.cancelled) == 1
