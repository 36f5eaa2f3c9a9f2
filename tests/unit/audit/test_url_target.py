"""A server is asked for the same thing with and without speculation, and its answers are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from slipstream.audit.law import Draw, law_params
from slipstream.audit.outcome import Case, Job
from slipstream.audit.plan import (
    CONFIGURED_DRAFTERS,
    NO_DRAFTERS,
    AuditPlan,
    Condition,
    DrafterSet,
    Setting,
)
from slipstream.audit.url_target import UrlTarget
from slipstream.errors import EngineFailureError, EngineUnavailableError, InvalidRequestError

Json = dict[str, Any]

CHAT = Case("chat", ({"role": "user", "content": "Hi"},))
TEXT = Case("text", text="Once")
PLAN = AuditPlan(("t0.7",), (2,), (NO_DRAFTERS,), (Condition(),), max_tokens=9)
METRICS = """\
# HELP slipstream_preemptions_total Running sequences sent back.
slipstream_preemptions_total {n}
slipstream_drafter_faults_total{{drafter="a",kind="raised"}} 2.0
slipstream_drafter_faults_total{{drafter="b",kind="raised"}} 3.0
"""


class FakeServer:
    """Answers every generation alike, and counts a preemption for each."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, Json]] = []
        self.status = 200
        self.version: Json = {}
        self.change: Callable[[Json], None] = lambda _: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "served"}]})
        if path == "/version":
            return httpx.Response(200, json={"version": "1"} | self.version)
        if path == "/metrics":
            return httpx.Response(200, text=METRICS.format(n=float(len(self.bodies))))
        body = json.loads(request.content)
        self.bodies.append((path, body))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "no such luck"}})
        answer = self._answer(path, body)
        self.change(answer)
        return httpx.Response(200, json=answer)

    def _answer(self, path: str, body: Json) -> Json:
        choice: Json = {"finish_reason": "length", "token_ids": [7, 8]}
        answer: Json = {
            "choices": [choice],
            "system_fingerprint": "fp_1",
            "usage": {"prompt_tokens_details": {"cached_tokens": 16}},
            "metrics": {"speculative_decoding": {"num_draft_tokens": 5, "num_accepted_tokens": 2}},
        }
        if path == "/v1/chat/completions":
            choice["message"] = {"content": "text"}
            return answer | {"prompt_token_ids": [1, 2]}
        choice |= {"text": "text", "prompt_token_ids": [1, 2]}
        if body.get("logprobs"):
            choice["logprobs"] = {
                "top_logprobs": [{"token_id:4": -1.5, "token_id:9": -0.25, "token_id:3": -3.0}]
            }
        return answer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def target_over(server: Callable[[httpx.Request], httpx.Response]) -> UrlTarget:
    transport = httpx.MockTransport(server)
    return UrlTarget(httpx.Client(base_url="http://test", transport=transport))


def job(case: Case, salt: str = "salt") -> Job:
    return Job(case, PLAN.params("t0.7", 3), salt)


def setting(drafters: DrafterSet) -> Setting:
    return Setting("t0.7", 2, drafters, Condition())


def test_conversations_go_to_chat_and_texts_to_completions(server: FakeServer) -> None:
    result = target_over(server).run(
        setting(NO_DRAFTERS), [job(CHAT), job(TEXT)], on_done=lambda: None
    )
    bodies = dict(server.bodies)
    assert bodies["/v1/chat/completions"]["messages"] == [{"role": "user", "content": "Hi"}]
    assert bodies["/v1/completions"]["prompt"] == "Once"
    for outcome in result.outcomes:
        assert outcome.prompt_token_ids == (1, 2)
        assert outcome.token_ids == (7, 8)
        assert (outcome.text, outcome.finish_reason) == ("text", "length")
        assert (outcome.num_draft_tokens, outcome.num_accepted_tokens) == (5, 2)
        assert (outcome.num_cached_tokens, outcome.fingerprint) == (16, "fp_1")


@pytest.mark.parametrize(
    ("drafters", "field"),
    [
        (NO_DRAFTERS, {"enabled": False}),
        (CONFIGURED_DRAFTERS, {"enabled": True, "drafters": None}),
        (DrafterSet("a+b", ("a", "b")), {"enabled": True, "drafters": ["a", "b"]}),
    ],
)
def test_only_speculation_differs_between_the_requests(
    server: FakeServer, drafters: DrafterSet, field: Json
) -> None:
    target_over(server).run(setting(drafters), [job(CHAT)], on_done=lambda: None)
    body = server.bodies[0][1]
    assert body.pop("speculation") == field
    assert body == {
        "model": "served",
        "messages": [{"role": "user", "content": "Hi"}],
        "return_token_ids": True,
        "cache_salt": "salt",
        "temperature": 0.7,
        "top_p": 0.9,
        "repetition_penalty": 1.05,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "max_tokens": 9,
        "seed": 4,
    }


def test_outcomes_keep_the_order_of_the_jobs(server: FakeServer) -> None:
    def echo_salt(answer: Json) -> None:
        answer["choices"][0]["message"]["content"] = server.bodies[-1][1]["cache_salt"]

    server.change = echo_salt
    done: list[None] = []
    alone = Setting("t0.7", 1, NO_DRAFTERS, Condition())
    jobs = [job(CHAT, salt=str(number)) for number in range(5)]
    result = target_over(server).run(alone, jobs, on_done=lambda: done.append(None))
    assert [outcome.text for outcome in result.outcomes] == ["0", "1", "2", "3", "4"]
    assert len(done) == 5


def test_preemptions_and_faults_of_the_run_are_read_from_the_metrics(server: FakeServer) -> None:
    target = target_over(server)
    target.run(setting(NO_DRAFTERS), [job(CHAT)], on_done=lambda: None)
    result = target.run(setting(NO_DRAFTERS), [job(CHAT), job(TEXT)], on_done=lambda: None)
    assert (result.num_preemptions, result.num_drafter_faults) == (2, 0)


def test_the_gap_between_the_best_two_comes_from_a_plain_completion(server: FakeServer) -> None:
    best = target_over(server).top_two([1, 2, 7])
    assert best.token_ids == (9, 4)
    assert best.gap == pytest.approx(1.25)
    path, body = server.bodies[-1]
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2, 7]
    assert body["speculation"] == {"enabled": False}


def test_answers_without_token_ids_cannot_be_compared(server: FakeServer) -> None:
    server.change = lambda answer: answer["choices"][0].pop("token_ids")
    with pytest.raises(EngineFailureError, match="token ids"):
        target_over(server).run(setting(NO_DRAFTERS), [job(CHAT)], on_done=lambda: None)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequestError), (500, EngineFailureError)]
)
def test_a_refusal_is_told_from_a_failure(
    server: FakeServer, status: int, kind: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(kind, match="no such luck"):
        target_over(server).run(setting(NO_DRAFTERS), [job(CHAT)], on_done=lambda: None)


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(EngineUnavailableError, match="does not answer"):
        target_over(refuse)


def test_a_server_says_how_it_verifies_drafts(server: FakeServer) -> None:
    assert target_over(server).verification == "exact"
    server.version = {"verification": "rejection"}
    assert target_over(server).verification == "rejection"


def test_where_the_law_is_counted_the_server_tells_what_tokens_were_drawn_from(
    server: FakeServer,
) -> None:
    def add_logprobs(answer: Json) -> None:
        choice = answer["choices"][0]
        if "message" in choice:
            top = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:4", "logprob": -2}]
            choice["logprobs"] = {
                "content": [
                    {"token": "token_id:7", "logprob": -0.5, "top_logprobs": top},
                    {"token": "token_id:9", "logprob": -9.0, "top_logprobs": top},
                ]
            }
        else:
            top_logprobs = {"token_id:4": -2.0, "token_id:7": -0.5}
            choice["logprobs"] = {
                "tokens": ["token_id:7", "token_id:9"],
                "top_logprobs": [top_logprobs, {"token_id:7": -0.5, "token_id:4": -2.0}],
            }

    server.change = add_logprobs
    jobs = [replace(item, params=law_params(item.params)) for item in (job(CHAT), job(TEXT))]
    result = target_over(server).run(setting(CONFIGURED_DRAFTERS), jobs, on_done=lambda: None)
    probs = (math.exp(-0.5), math.exp(-2.0))
    for outcome in result.outcomes:
        assert outcome.draws == (Draw(0, probs), Draw(None, probs))
    for path, body in server.bodies:
        assert body["logprobs_mode"] == "processed"
        assert body["ignore_eos"]
        assert body["return_tokens_as_token_ids"]
        is_chat = path == "/v1/chat/completions"
        assert body["logprobs"] == (True if is_chat else 5)
        assert body.get("top_logprobs") == (5 if is_chat else None)
