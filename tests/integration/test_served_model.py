"""The real command, a real socket, the official client: one server for the whole file."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch

from tests.support.tiny import write_tiny_checkpoint

MODEL = "tiny"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served") / MODEL
    folder.mkdir()
    write_tiny_checkpoint(folder, "llama", seed=3, dtype=torch.float32)
    log = folder / "log"
    settings = ["model.dtype=float32", "memory.kv_bytes=64MiB", "engine.num_threads=1"]
    command = [sys.executable, "-m", "slipstream.cli", "serve", "--model", str(folder)]
    command += ["--port", "0", *(part for item in settings for part in ("--set", item))]
    with log.open("w") as output:
        server = subprocess.Popen(command, stderr=output, stdout=output)
    try:
        yield _wait_ready(server, log)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0, log.read_text()


def _wait_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found and httpx.get(f"{found[0]}/ready").status_code == 200:
            return found[0]
        time.sleep(0.2)
    pytest.fail(f"the server did not become ready:\n{log.read_text()}")


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


PROMPT = "one two three one two three one two"


def complete(client: openai.OpenAI, **fields: object) -> openai.types.Completion:
    return client.completions.create(model=MODEL, prompt=PROMPT, **fields)  # type: ignore[call-overload, no-any-return]  # fields vary by test


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_on_and_off_give_the_same_text(
    client: openai.OpenAI, temperature: float
) -> None:
    texts = {
        complete(
            client,
            max_tokens=48,
            temperature=temperature,
            seed=11,
            extra_body={"speculation": {"enabled": enabled}, "ignore_eos": True},
        )
        .choices[0]
        .text
        for enabled in (True, False)
    }
    assert len(texts) == 1


def test_a_stream_adds_up_to_the_plain_answer(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=32, temperature=0.0)
    stream = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=32, temperature=0.0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_chat_reports_usage_seed_fingerprint_and_acceptance(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "a b c a b c a b"}],
        max_tokens=40,
        temperature=0.0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("fp_")
    extra = answer.model_extra or {}
    assert isinstance(extra["seed"], int)
    stats = extra["metrics"]["speculative_decoding"]
    assert stats["num_drafts"] > 0
    assert stats["num_accepted_tokens"] <= stats["num_draft_tokens"]
    assert stats["mean_acceptance_length"] >= 1.0
    assert sum(stats["num_accepted_tokens_per_pos"]) == stats["num_accepted_tokens"]


def test_a_reported_seed_reproduces_the_answer(client: openai.OpenAI) -> None:
    first = complete(client, max_tokens=24, temperature=1.0)
    seed = (first.model_extra or {})["seed"]
    again = complete(client, max_tokens=24, temperature=1.0, seed=seed)
    other = complete(client, max_tokens=24, temperature=1.0, seed=seed + 1)
    assert again.choices[0].text == first.choices[0].text
    assert other.choices[0].text != first.choices[0].text


def test_logprobs_are_the_same_with_and_without_speculation(client: openai.OpenAI) -> None:
    answers = [
        complete(
            client,
            max_tokens=24,
            temperature=0.0,
            logprobs=3,
            extra_body={"speculation": {"enabled": enabled}},
        )
        for enabled in (True, False)
    ]
    on, off = (answer.choices[0].logprobs for answer in answers)
    assert on is not None
    assert off is not None
    assert on.token_logprobs == off.token_logprobs
    assert on.top_logprobs == off.top_logprobs
    assert on.token_logprobs is not None
    assert any(value is not None and value < 0.0 for value in on.token_logprobs)


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=1, temperature=0.0, logprobs=1, echo=True)
    assert answer.choices[0].text.startswith(PROMPT)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None for value in logprobs.token_logprobs[1:])


def test_choices_differ_and_the_first_is_the_seed_alone(client: openai.OpenAI) -> None:
    several = complete(client, max_tokens=16, temperature=1.0, seed=5, n=3)
    alone = complete(client, max_tokens=16, temperature=1.0, seed=5)
    texts = [choice.text for choice in several.choices]
    assert texts[0] == alone.choices[0].text
    assert len(set(texts)) == 3


def test_a_too_long_prompt_is_a_clear_400_and_the_server_stays_up(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x y z " * 5000, max_tokens=4)
    assert caught.value.code == "context_length_exceeded"
    assert complete(client, max_tokens=2).choices[0].text is not None


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")


def test_metrics_count_what_was_served(url: str, client: openai.OpenAI) -> None:
    complete(client, max_tokens=8, extra_body={"ignore_eos": True})
    text = httpx.get(f"{url}/metrics").text
    for name in (
        "generation_tokens_total",
        "spec_decode_num_drafts_total",
        "http_requests_total",
        "kernel_products_total",
        "kernel_attention_calls_total",
    ):
        found = re.search(rf"^slipstream_{name}(\{{.*\}})? (\d+)", text, re.MULTILINE)
        assert found, f"{name} is missing"
        assert int(found[2]) > 0


def test_a_client_that_leaves_frees_its_request(url: str) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 200, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        next(response.iter_bytes())
    deadline = time.monotonic() + 10
    running = ""
    while time.monotonic() < deadline and running != "0.0":
        text = httpx.get(f"{url}/metrics").text
        running = re.findall(r"^slipstream_requests_running (\S+)", text, re.MULTILINE)[0]
        time.sleep(0.05)
    assert running == "0.0"
