"""The engine in its own process: crash, restart, cancel, drain, and errors at start."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from slipstream.config.load import load_config
from slipstream.config.schema import Config
from slipstream.engine.client import RequestEvent
from slipstream.engine.messages import Failed, PromptDone, Submit, Tokens
from slipstream.engine.process import ProcessEngineClient
from slipstream.errors import WeightsError
from slipstream.sampling.params import SamplingParams
from tests.support.tiny import write_tiny_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny_checkpoint(path, "llama", seed=1, dtype=torch.float32)
    return path


def settings_of(path: Path, **settings: object) -> Config:
    overrides = {
        "model.source": str(path),
        "model.dtype": "float32",
        "memory.kv_bytes": "64MiB",
        "engine.num_threads": 1,
        "engine.restart_backoff_s": 0.1,
    } | settings
    return load_config(file=None, env={}, overrides=overrides)


@asynccontextmanager
async def running_engine(path: Path, **settings: object) -> AsyncIterator[ProcessEngineClient]:
    client = ProcessEngineClient(settings_of(path, **settings))
    await client.start()
    try:
        yield client
    finally:
        await client.stop(0.0)


async def collect(client: ProcessEngineClient, submit: Submit) -> list[RequestEvent]:
    return [event async for event in client.submit(submit)]


def output(events: list[RequestEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Tokens) for token in event.token_ids]


def test_a_launched_engine_starts_while_its_owner_is_busy(model_path: Path) -> None:
    async def scenario() -> None:
        client = ProcessEngineClient(settings_of(model_path))
        await client.launch()
        try:
            child = client.process_id
            assert child is not None
            assert client.state == "starting"
            await client.start()
            assert client.is_ready
            assert client.process_id == child
        finally:
            await client.stop(0.0)
        assert client.process_id is None

    asyncio.run(scenario())


def test_a_launched_engine_that_nobody_waits_for_ends_with_its_owner(model_path: Path) -> None:
    async def scenario() -> int:
        client = ProcessEngineClient(settings_of(model_path))
        await client.launch()
        child = client.process_id
        await client.stop(0.0)
        assert child is not None
        return child

    child = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_request_is_answered_and_metrics_can_be_read(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            events = await collect(client, Submit("a", (5, 6, 7, 8), GREEDY))
            assert isinstance(events[0], PromptDone)
            assert len(output(events)) == 12
            assert "slipstream_generation_tokens_total 12" in await client.call("metrics")
            assert await client.call("check_integrity") is True

    asyncio.run(scenario())


def test_a_crash_fails_the_requests_in_flight_and_the_engine_comes_back(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            long = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
            stream = client.submit(Submit("a", (5, 6, 7), long))
            await anext(stream)
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Failed)
            assert rest[-1].error == "EngineFailureError"
            assert not client.is_ready
            refused = await collect(client, Submit("b", (5, 6, 7), GREEDY))
            assert isinstance(refused[0], Failed)
            assert refused[0].error == "EngineUnavailableError"
            async with asyncio.timeout(60):
                while not client.is_ready:  # noqa: ASYNC110 - a state, not an event
                    await asyncio.sleep(0.05)
            assert len(output(await collect(client, Submit("c", (5, 6, 7), GREEDY)))) == 12
            assert client.num_restarts == 1

    asyncio.run(scenario())


def test_a_request_sent_to_an_engine_that_has_just_died_fails_like_any_other(
    model_path: Path,
) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            time.sleep(0.3)  # noqa: ASYNC251 - the loop must not learn of the death before we ask
            events = await collect(client, Submit("a", (5, 6, 7), GREEDY))
            assert isinstance(events[-1], Failed)
            assert events[-1].error in ("EngineFailureError", "EngineUnavailableError")

    asyncio.run(scenario())


def test_an_engine_that_keeps_crashing_is_given_up(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path, **{"engine.restart_limit": 0}) as client:
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            async with asyncio.timeout(30):
                while client.state != "failed":  # noqa: ASYNC110 - a state, not an event
                    await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_an_engine_that_dies_each_time_it_was_ready_is_given_up_too(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path, **{"engine.restart_limit": 1}) as client:
            for _ in range(2):
                async with asyncio.timeout(60):
                    while not client.is_ready:  # noqa: ASYNC110 - a state, not an event
                        await asyncio.sleep(0.05)
                assert client.process_id is not None
                os.kill(client.process_id, signal.SIGKILL)
                while client.is_ready:  # noqa: ASYNC110 - a state, not an event
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                while client.state != "failed":  # noqa: ASYNC110 - a state, not an event
                    await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_closing_a_stream_cancels_its_request(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            long = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
            stream = client.submit(Submit("a", (5, 6, 7), long))
            await anext(stream)
            await stream.aclose()
            await collect(client, Submit("b", (5, 6, 7), GREEDY))
            metrics = await client.call("metrics")
            assert 'slipstream_requests_finished_total{reason="cancelled"} 1' in metrics

    asyncio.run(scenario())


def test_stop_lets_running_requests_finish(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            task = asyncio.create_task(collect(client, Submit("a", (5, 6, 7), GREEDY)))
            await asyncio.sleep(0.05)
            await client.stop(30.0)
            assert len(output(await task)) == 12

    asyncio.run(scenario())


def test_the_whole_group_may_be_stopped_and_continued(model_path: Path) -> None:
    async def scenario() -> None:
        async with running_engine(model_path) as client:
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGSTOP)
            await asyncio.sleep(0.3)
            os.kill(client.process_id, signal.SIGCONT)
            assert len(output(await collect(client, Submit("a", (5, 6), GREEDY)))) == 12

    asyncio.run(scenario())


def test_a_broken_checkpoint_is_reported_by_its_own_error(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model_path / "config.json").read_bytes())
    weights = (model_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])

    async def scenario() -> None:
        with pytest.raises(WeightsError, match=r"model\.safetensors"):
            async with running_engine(tmp_path):
                pass

    asyncio.run(scenario())
