"""The API process on a real socket: listen, start, serve, drain, end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from slipstream.config.server import ServerConfig
from slipstream.engine.messages import EngineInfo
from slipstream.errors import StartupError, WeightsError
from slipstream.server.connection import HeadTimeoutProtocol
from slipstream.server.context import Service
from slipstream.server.listen import check_listen_address, is_loopback, open_listener, url_of
from slipstream.server.plan import off_loop
from slipstream.server.run import Hooks, serve
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.service import MODEL, chat_body, events_of, in_loop, service_over


@dataclass
class Running:
    """A service that listens."""

    service: Service
    url: str = ""
    drained: list[int] = field(default_factory=list)
    info: EngineInfo | None = None
    task: asyncio.Task[None] | None = None


@asynccontextmanager
async def running(engine: FakeEngine, **settings: Any) -> AsyncIterator[Running]:
    """Serve on a free port; SIGTERM at the end, if the test did not send it."""
    service = service_over(engine, config=ServerConfig(port=0, **settings))
    state = Running(service)
    is_listening, is_ready = asyncio.Event(), asyncio.Event()

    def on_listening(url: str) -> None:
        state.url = url
        is_listening.set()

    def on_ready(info: EngineInfo) -> None:
        state.info = info
        is_ready.set()

    state.task = asyncio.create_task(
        serve(service, Hooks(on_listening, on_ready, state.drained.append))
    )
    await asyncio.wait_for(is_ready.wait(), 5)
    assert is_listening.is_set()
    try:
        yield state
    finally:
        if not state.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(state.task, return_exceptions=True), 10)


async def until(condition: Any) -> None:
    """Let the loop turn until `condition()` holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the fake has no event for each of its moments
            await asyncio.sleep(0.001)


@in_loop
async def test_a_real_client_is_served_over_a_real_socket() -> None:
    async with running(FakeEngine(text_reply("Hello!"))) as server:
        assert server.info is not None
        async with AsyncOpenAI(api_key="none", base_url=server.url + "/v1") as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Hello!"
    assert server.task is not None
    assert server.task.exception() is None


@in_loop
async def test_closing_the_connection_cancels_the_request() -> None:
    engine = FakeEngine(text_reply("a long answer " * 10), tokens_per_step=1)
    async with running(engine) as server, httpx.AsyncClient() as client:
        url = server.url + "/v1/chat/completions"
        async with client.stream("POST", url, json=chat_body(stream=True)) as response:
            async for _ in response.aiter_lines():
                engine.gate.clear()
                break
        await until(lambda: engine.cancelled)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(url, json=chat_body(), timeout=0.1)
        await until(lambda: len(engine.cancelled) == 2)
        engine.gate.set()
    assert engine.num_running == 0


@pytest.mark.parametrize(("head", "num_requests"), [(b"", 0), (b"GET / HT", 0), (b"GET / HT", 1)])
@in_loop
async def test_a_connection_that_never_finishes_a_request_s_head_is_closed(
    head: bytes, num_requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadTimeoutProtocol, "head_timeout_s", 0.2)
    async with running(FakeEngine()) as server:
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(num_requests):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"ok"), 3)
            await reader.readuntil(b"}")
        writer.write(head)
        rest = await asyncio.wait_for(reader.read(), 3)
        writer.close()
    assert rest == b""


@in_loop
async def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadTimeoutProtocol, "head_timeout_s", 0.1)
    engine = FakeEngine()
    engine.gate.clear()
    async with running(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body()))
        await until(lambda: engine.submitted)
        await asyncio.sleep(0.3)
        engine.gate.set()
        assert (await task).status_code == 200


@in_loop
async def test_sigterm_lets_running_requests_finish_and_refuses_new_ones() -> None:
    engine = FakeEngine(text_reply("done"))
    engine.gate.clear()
    async with running(engine, drain_timeout_s=5.0) as server, httpx.AsyncClient() as client:
        url = server.url + "/v1/chat/completions"
        request = asyncio.create_task(client.post(url, json=chat_body()))
        await until(lambda: engine.submitted)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: server.service.lifecycle.is_draining)
        ready = await client.get(server.url + "/ready")
        refused = await client.post(url, json=chat_body())
        engine.gate.set()
        answer = await request
        assert server.task is not None
        await asyncio.wait_for(server.task, 5)
    assert (ready.status_code, refused.status_code) == (503, 503)
    assert answer.json()["choices"][0]["message"]["content"] == "done"
    assert server.drained == [1]
    assert engine.stopped_with == 5.0


@in_loop
async def test_what_outlives_the_drain_is_ended_with_an_error_event() -> None:
    engine = FakeEngine(text_reply("a long answer " * 10), tokens_per_step=1)
    async with running(engine, drain_timeout_s=0.05) as server, httpx.AsyncClient() as client:
        url = server.url + "/v1/chat/completions"
        async with client.stream("POST", url, json=chat_body(stream=True)) as response:
            lines = response.aiter_lines()
            body = await anext(lines) + "\n"
            engine.gate.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            body += "".join([line + "\n" async for line in lines])
    *_, error, done = events_of(body)
    assert error["error"]["code"] == "engine_unavailable"
    assert done == "[DONE]"


@in_loop
async def test_a_second_signal_ends_the_drain() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with running(engine, drain_timeout_s=600.0) as server, httpx.AsyncClient() as client:
        request = asyncio.create_task(
            client.post(server.url + "/v1/chat/completions", json=chat_body())
        )
        await until(lambda: engine.submitted)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: server.service.lifecycle.is_draining)
        os.kill(os.getpid(), signal.SIGINT)
        assert server.task is not None
        await asyncio.wait_for(server.task, 5)
        assert (await request).status_code == 503
    assert engine.stopped_with == 0.0


@in_loop
async def test_an_engine_that_does_not_start_ends_the_service_with_its_reason() -> None:
    engine = FakeEngine()
    engine.start_error = WeightsError("shard 2 is missing")
    service = service_over(engine, config=ServerConfig(port=0))
    with pytest.raises(WeightsError, match="shard 2 is missing"):
        await asyncio.wait_for(serve(service), 5)


@in_loop
async def test_an_engine_that_fails_for_good_ends_the_service() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        engine.set_state("failed")
        assert server.task is not None
        with pytest.raises(StartupError, match="was not started again"):
            await asyncio.wait_for(server.task, 5)


@in_loop
async def test_an_occupied_port_is_named_with_a_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        service = service_over(FakeEngine(), config=ServerConfig(port=port))
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            await serve(service)
    assert "server.port" in (caught.value.hint or "")


@in_loop
async def test_a_public_address_without_keys_is_refused_before_anything_starts() -> None:
    service = service_over(FakeEngine(), config=ServerConfig(host="0.0.0.0", port=0))
    with pytest.raises(StartupError, match="no API key is set") as caught:
        await serve(service)
    assert "SLIPSTREAM_API_KEYS" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_only_loopback_addresses_are_private(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_public_address_is_allowed_with_keys_or_when_told_so() -> None:
    check_listen_address("0.0.0.0", has_keys=True, is_public_allowed=False)
    check_listen_address("0.0.0.0", has_keys=False, is_public_allowed=True)


def test_a_host_that_is_no_address_is_refused() -> None:
    with pytest.raises(StartupError, match="no address of this machine"):
        open_listener("no.such.host.invalid", 0)
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1"):
        open_listener("192.0.2.1", 0)


def test_a_wildcard_listener_is_shown_with_an_address_to_talk_to() -> None:
    with open_listener("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@in_loop
async def test_few_long_prompts_are_tokenised_at_once_however_many_come() -> None:
    lock, present, peak = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal present, peak
        with lock:
            present += 1
            peak = max(peak, present)
        time.sleep(0.01)
        with lock:
            present -= 1

    async with running(FakeEngine(text_reply("Hello!"))):
        await asyncio.gather(*(off_loop(work, num_bytes=10**6) for _ in range(8)))
    assert 1 <= peak <= 2
