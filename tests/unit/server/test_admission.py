"""Who is let in: keys, limits, the closed door of a draining service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from slipstream.config.server import ServerConfig
from slipstream.errors import EngineUnavailableError, QueueFullError, RequestTimeoutError
from slipstream.server.lifecycle import Lifecycle
from slipstream.server.limits import Admission
from tests.support.fake_engine import FakeEngine
from tests.support.service import chat_body, client_of, in_loop, service_over

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer nope"},
        {"authorization": "Basic key-1"},
        {"authorization": "Bearer "},
    ],
)
@in_loop
async def test_without_a_right_key_nothing_is_answered(headers: dict[str, str]) -> None:
    async with client_of(service_over(FakeEngine(), api_keys=("key-1", "key-2"))) as client:
        for method, path in (("POST", PATH), ("GET", "/metrics"), ("GET", "/nope")):
            response = await client.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["key-1", "key-2"])
@in_loop
async def test_each_key_opens(key: str) -> None:
    service = service_over(FakeEngine(), api_keys=("key-1", "key-2"))
    async with client_of(service, authorization=f"Bearer {key}") as client:
        assert (await client.post(PATH, json=chat_body())).status_code == 200


@in_loop
async def test_a_key_of_other_letters_opens_as_utf_8() -> None:
    keys = ("schlüssel€", "voilà", "Å", "ключР")
    async with client_of(service_over(FakeEngine(), api_keys=keys)) as client:
        for key in keys:
            headers = {b"authorization": f"Bearer {key} ".encode()}
            response = await client.post(PATH, json=chat_body(), headers=headers)
            assert response.status_code == 200, key
        headers = {b"authorization": "Bearer schlüssel€".encode("cp1252")}
        assert (await client.post(PATH, json=chat_body(), headers=headers)).status_code == 401


@in_loop
async def test_probes_need_no_key() -> None:
    async with client_of(service_over(FakeEngine(), api_keys=("key",))) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200


@in_loop
async def test_one_request_too_many_gets_429_and_a_time_to_retry() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    service = service_over(engine, config=ServerConfig(max_concurrency=1))
    async with client_of(service) as client:
        first = asyncio.create_task(client.post(PATH, json=chat_body()))
        while not engine.submitted:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        second = await client.post(PATH, json=chat_body())
        probe = await client.get("/ready")
        engine.gate.set()
        assert (await first).status_code == 200
        third = await client.post(PATH, json=chat_body())
    assert second.status_code == 429
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert second.headers["retry-after"] == "1"
    assert (probe.status_code, third.status_code) == (200, 200)
    assert service.lifecycle.num_in_flight == 0


@in_loop
async def test_a_draining_service_finishes_what_runs_and_refuses_the_rest() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    service = service_over(engine)
    async with client_of(service) as client:
        running = asyncio.create_task(client.post(PATH, json=chat_body()))
        while not engine.submitted:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
        service.lifecycle.begin_drain()
        refused = await client.post(PATH, json=chat_body())
        ready, health = await client.get("/ready"), await client.get("/health")
        engine.gate.set()
        assert (await running).status_code == 200
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unavailable"
    assert refused.headers["retry-after"] == "5"
    assert (ready.status_code, health.status_code) == (503, 200)


@pytest.mark.parametrize("state", ["starting", "restarting", "draining", "failed"])
@in_loop
async def test_requests_wait_for_nobody_while_the_engine_is_not_ready(state: str) -> None:
    engine = FakeEngine()
    engine.set_state(state)  # type: ignore[arg-type]  # parametrized with the states' names
    async with client_of(service_over(engine)) as client:
        response = await client.post(PATH, json=chat_body())
    assert response.status_code == 503
    assert f"the engine is {state}" in response.json()["error"]["message"]


@in_loop
async def test_a_request_that_hangs_outside_its_answer_is_cut_off() -> None:
    async def hanging(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    async def unused() -> dict[str, Any]:
        raise AssertionError("a hanging application does not read")

    async def unsent(_message: Any) -> None:
        raise AssertionError("a hanging application does not write")

    service = service_over(FakeEngine(), config=ServerConfig(request_timeout_s=0.01))
    admission = Admission(hanging, service, grace_s=0.01)
    with pytest.raises(RequestTimeoutError, match=r"0\.01 seconds"):
        await admission({"type": "http", "path": PATH}, unused, unsent)
    assert service.lifecycle.num_in_flight == 0


@in_loop
async def test_the_lifecycle_counts_and_tells_when_it_is_idle() -> None:
    lifecycle = Lifecycle(max_concurrency=2)
    lifecycle.enter()
    lifecycle.enter()
    with pytest.raises(QueueFullError, match=r"2 requests .*server\.max_concurrency"):
        lifecycle.enter()
    assert not await lifecycle.wait_idle(0.001)
    lifecycle.leave()
    lifecycle.leave()
    assert await lifecycle.wait_idle(0.001)
    lifecycle.begin_drain()
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        lifecycle.enter()
