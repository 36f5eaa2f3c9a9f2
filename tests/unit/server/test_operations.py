"""Tokens, health, metrics, version and the access log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.config.server import ServerConfig
from slipstream.errors import EngineUnavailableError
from tests.support.fake_engine import BOS, FakeEngine, text_reply
from tests.support.service import MODEL, chat_body, client_of, in_loop, service_over


@in_loop
async def test_a_prompt_is_tokenised_with_special_tokens_unless_told_otherwise() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        plain = await client.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True})
        bare = await client.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False})
    assert plain.json() == {
        "count": 3,
        "max_model_len": 200,
        "tokens": [BOS, 72, 105],
        "token_strs": ["<s>", "H", "i"],
    }
    assert bare.json()["tokens"] == [72, 105]


@in_loop
async def test_messages_are_tokenised_as_chat_would() -> None:
    engine = FakeEngine()
    async with client_of(service_over(engine)) as client:
        body = {"messages": chat_body()["messages"], "model": MODEL}
        tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
        await client.post("/v1/chat/completions", json=chat_body())
    assert tuple(tokens) == engine.submitted[0].prompt


@in_loop
async def test_detokenising_gives_special_tokens_as_text() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        response = await client.post("/detokenize", json={"tokens": [BOS, 72, 105]})
    assert response.json() == {"prompt": "<s>Hi"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": chat_body()["messages"]}, "prompt"),
        ("/tokenize", {"promt": "a"}, "promt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
@in_loop
async def test_wrong_token_requests_are_refused(
    path: str, body: dict[str, Any], param: str
) -> None:
    async with client_of(service_over(FakeEngine())) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@in_loop
async def test_token_requests_for_another_model_get_404() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            response = await client.post(path, json={**body, "model": "other"})
            assert response.status_code == 404


@in_loop
async def test_health_is_lost_only_with_the_engine_for_good() -> None:
    engine = FakeEngine()
    async with client_of(service_over(engine)) as client:
        for state, health, ready in (
            ("ready", 200, 200),
            ("restarting", 200, 503),
            ("failed", 503, 503),
            ("starting", 200, 503),
        ):
            engine.set_state(state)  # type: ignore[arg-type]  # the loop's names are states
            assert (await client.get("/health")).status_code == health
            assert (await client.get("/ready")).status_code == ready


@in_loop
async def test_version_tells_what_is_served() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        response = await client.get("/version")
    assert response.json() == {
        "version": "1.2.3",
        "model": MODEL,
        "system_fingerprint": "fp_fake",
        "verification": None,
    }


@in_loop
async def test_metrics_of_both_processes_are_one_exposition() -> None:
    async with client_of(service_over(FakeEngine())) as client:
        await client.post("/v1/chat/completions", json=chat_body())
        await client.post("/v1/chat/completions", json=chat_body(n=0))
        await client.get("/nobody/knows/this")
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    requests = "slipstream_http_requests_total"
    assert samples[(requests, ("/v1/chat/completions", "200"))] == 1
    assert samples[(requests, ("/v1/chat/completions", "400"))] == 1
    assert samples[(requests, ("other", "404"))] == 1
    assert samples[("slipstream_errors_total", ("invalid_request",))] == 1
    assert samples[("slipstream_engine_state", ("ready",))] == 1
    assert samples[("slipstream_engine_state", ("failed",))] == 0
    assert samples[("slipstream_build_info", ("fp_fake", MODEL, "1.2.3"))] == 1
    assert samples[("slipstream_x", ())] == 1


@in_loop
async def test_restarts_of_the_engine_are_counted() -> None:
    engine = FakeEngine()
    async with client_of(service_over(engine)) as client:
        for num_restarts in (0, 2, 3):
            engine.num_restarts = num_restarts
            text = (await client.get("/metrics")).text
            assert f"slipstream_engine_restarts_total {num_restarts}.0" in text


@in_loop
async def test_metrics_are_served_without_an_engine_that_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(FakeEngine):
        async def call(self, method: str) -> Any:
            raise EngineUnavailableError("restarting")

    async with client_of(service_over(Silent())) as client:
        with caplog.at_level(logging.WARNING):
            response = await client.get("/metrics")
    assert response.status_code == 200
    assert "slipstream_http_in_flight" in response.text
    assert "engine's metrics are missing" in caplog.text


@in_loop
async def test_the_access_log_tells_everything_but_text(caplog: pytest.LogCaptureFixture) -> None:
    body = chat_body(messages=[{"role": "user", "content": "secret"}], user="secret")
    async with client_of(service_over(FakeEngine(text_reply("secret")))) as client:
        with caplog.at_level(logging.INFO, logger="slipstream.access"):
            response = await client.post(
                "/v1/chat/completions", json=body, headers={"x-request-id": "abc-1"}
            )
    (record,) = [entry for entry in caplog.records if entry.name == "slipstream.access"]
    fields = record.fields  # type: ignore[attr-defined]  # set through logging's `extra`
    duration_s = fields.pop("duration_s")
    assert duration_s > 0
    assert fields == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "request_id": "abc-1",
        "response_id": response.json()["id"],
        "prompt_tokens": 23,
        "output_tokens": 7,
    }
    assert "secret" not in caplog.text
    assert response.headers["x-request-id"] == "abc-1"


@in_loop
async def test_a_refusal_is_logged_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(service_over(FakeEngine())) as client:
        with caplog.at_level(logging.INFO, logger="slipstream.access"):
            await client.post("/v1/chat/completions", json=chat_body(n=0))
    (record,) = caplog.records
    assert record.fields["error"] == "invalid_request"  # type: ignore[attr-defined]  # `extra`


@in_loop
async def test_the_access_log_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    service = service_over(FakeEngine(), config=ServerConfig(access_log=False))
    async with client_of(service) as client:
        with caplog.at_level(logging.DEBUG, logger="slipstream.access"):
            await client.get("/health")
    assert caplog.records == []


@pytest.mark.parametrize("given", ["", "a b", "x" * 200, "id\tx", "é"])
@in_loop
async def test_an_unclean_request_id_is_replaced(given: str) -> None:
    async with client_of(service_over(FakeEngine())) as client:
        response = await client.get("/health", headers=[(b"x-request-id", given.encode())])
    assert response.headers["x-request-id"].startswith("req-")
