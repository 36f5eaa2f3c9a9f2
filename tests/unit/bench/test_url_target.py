"""A server is measured over its own API, here in this process over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.applications import Starlette

from slipstream.bench.prompts import Prompt
from slipstream.bench.target import Job
from slipstream.bench.url_target import UrlTarget
from slipstream.clock import SystemClock
from slipstream.engine.messages import Failed
from slipstream.errors import EngineFailureError, EngineUnavailableError
from slipstream.sampling.params import SamplingParams
from slipstream.server.app import create_app
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.service import service_over

PARAMS = SamplingParams(temperature=0.0, max_tokens=50, seed=3)
METRICS = """\
# HELP slipstream_all All of them.
slipstream_step_seconds_count 5
slipstream_step_seconds_sum 0.5
slipstream_step_rows_sum 9
slipstream_draft_seconds_total 0.1
slipstream_verify_seconds_total 0.4
"""


class AppTransport(httpx.BaseTransport):
    """A blocking client's way to an application in this process; answers come in one piece."""

    def __init__(self, app: Starlette) -> None:
        self._transport = httpx.ASGITransport(app)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            response = await self._transport.handle_async_request(request)
            content = await response.aread()
            return httpx.Response(response.status_code, headers=response.headers, content=content)

        return asyncio.run(answer())


@contextmanager
def target_over(engine: FakeEngine) -> Iterator[UrlTarget]:
    transport = AppTransport(create_app(service_over(engine)))
    with httpx.Client(base_url="http://test", transport=transport) as client:
        yield UrlTarget(client, SystemClock())


def chat(*contents: str) -> Prompt:
    messages = tuple({"role": "user", "content": content} for content in contents)
    return Prompt("p", "chat", messages=messages)


def job(prompt: Prompt) -> Job:
    return Job(prompt, PARAMS, "salt")


def test_a_streamed_answer_becomes_a_turn() -> None:
    with target_over(FakeEngine(text_reply("Hello!"))) as target:
        run = target.run([job(chat("Hi"))], is_drafting=True)
        assert target.facts["fingerprint"] == "fp_fake"
    (turn,) = run.turns
    assert bytes(turn.token_ids[:-1]) == b"Hello!"
    assert turn.num_first_tokens == 3
    assert turn.num_decode_tokens == 4
    assert turn.finish_reason == "stop"
    assert 0 < turn.ttft_s <= turn.e2e_s
    assert turn.counts.accepted_at == (3, 2, 1)
    assert turn.counts.num_draft_tokens == 10


def test_the_request_says_whether_to_draft_and_which_salt_to_use() -> None:
    engine = FakeEngine(text_reply("a"))
    with target_over(engine) as target:
        target.run([job(chat("Hi"))], is_drafting=False)
        target.run([job(chat("Hi"))], is_drafting=True)
    off, on = engine.submitted
    assert (off.speculation.enabled, on.speculation.enabled) == (False, True)
    assert off.cache_salt == "salt"
    assert off.params == on.params
    assert off.params.seed == 3


def test_the_second_turn_holds_the_first_answer() -> None:
    engine = FakeEngine(text_reply("Yes."))
    with target_over(engine) as target:
        run = target.run([job(chat("One?", "Two?"))], is_drafting=True)
    assert len(run.turns) == 2
    second = bytes(engine.submitted[1].prompt).decode()
    assert second == "user: One?\nassistant: Yes.\nuser: Two?\nassistant:"


def test_a_text_goes_to_completions() -> None:
    engine = FakeEngine(text_reply("upon a time"))
    with target_over(engine) as target:
        run = target.run([job(Prompt("p", "c", text="Once"))], is_drafting=True)
    assert bytes(engine.submitted[0].prompt[1:]) == b"Once"
    assert len(run.turns[0].token_ids) == len("upon a time") + 1


def test_prompts_run_together_and_come_back_in_order() -> None:
    engine = FakeEngine(lambda submit, index: list(submit.prompt[6:8]))
    jobs = [job(chat(text)) for text in ("ab", "cd", "ef")]
    with target_over(engine) as target:
        run = target.run(jobs, is_drafting=True)
    assert [bytes(answer.turns[0].token_ids) for answer in run.answers] == [b"ab", b"cd", b"ef"]


def test_step_times_come_from_the_servers_metrics() -> None:
    engine = FakeEngine(text_reply("a"))
    engine.metrics_text = METRICS
    with target_over(engine) as target:
        run = target.run([job(chat("Hi"))], is_drafting=True)
    assert run.times is not None
    assert run.times.num_steps == 0


def test_without_such_metrics_the_step_times_are_not_known() -> None:
    with target_over(FakeEngine(text_reply("a"))) as target:
        assert target.run([job(chat("Hi"))], is_drafting=True).times is None


def test_a_prompt_that_the_server_refuses_is_a_refusal() -> None:
    with target_over(FakeEngine(max_model_len=90)) as target:
        run = target.run([job(chat("x" * 100)), job(chat("Hi"))], is_drafting=True)
    assert "context is 90" in (run.answers[0].refusal or "")
    assert run.answers[1].refusal is None


def test_an_engine_that_fails_ends_the_benchmark() -> None:
    failure = Failed("", "EngineFailureError", "it broke")
    for fail_after in (0, 2):
        engine = FakeEngine(text_reply("Hello!"), failure=failure, fail_after=fail_after)
        with (
            target_over(engine) as target,
            pytest.raises(EngineFailureError, match="it broke"),
        ):
            target.run([job(chat("Hi"))], is_drafting=True)


def test_a_server_that_does_not_answer_is_named() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with (
        httpx.Client(base_url="http://nowhere", transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(EngineUnavailableError, match="http://nowhere/v1/models does not answer"),
    ):
        UrlTarget(client, SystemClock())


def test_a_server_that_is_none_of_ours_is_refused() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, text="nothing here")

    with (
        httpx.Client(base_url="http://other", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(EngineFailureError, match="answered 404: nothing here"),
    ):
        UrlTarget(client, SystemClock())
