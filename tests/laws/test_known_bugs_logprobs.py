"""Known bugs of speculative servers: log-probabilities that were wrong, missing or too many.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream.engine.llm import LLM
from slipstream.engine.messages import TokenLogprob
from slipstream.sampling.params import SamplingParams
from tests.support.engine import EngineHarness
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.runs import COPYING, PROMPT, SAMPLED, Ask, drafter_sets, num_accepted, together
from tests.support.service import chat_body, client_of, events_of, in_loop, service_over
from tests.support.tiny_llm import tiny_llm, write_tiny_model

DRAFTERS = [
    {"kind": "ngram", "min_n": 1},
    {"kind": "draft_model", "source": "target", "dtype": "bfloat16", "num_children": 2},
]
TEXT = [*range(10, 30), *range(10, 24)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """The same weights without and with drafters."""
    num_threads = torch.get_num_threads()
    path: Path = write_tiny_model(tmp_path_factory.mktemp("model"))
    yield tiny_llm(path), tiny_llm(path, DRAFTERS)
    torch.set_num_threads(num_threads)


def values(entries: Sequence[TokenLogprob] | None) -> list[float]:
    return [entry.logprob for entry in entries or () if entry.logprob is not None]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_equal_those_of_a_teacher_forced_pass(
    engines: tuple[LLM, LLM], temperature: float
) -> None:
    """llama.cpp#27972: with speculation every log-probability was 0.0. Here the whole sequence is
    sent back as a prompt, whose log-probabilities need no drawing and no draft."""
    plain, drafting = engines
    params = SamplingParams(
        temperature=temperature, seed=4, max_tokens=30, logprobs=True, ignore_eos=True
    )
    (answer,) = drafting.generate([TEXT], params)
    choice = answer.choices[0]
    assert choice.speculation.num_accepted_tokens > 5
    forced = plain.generate(
        [[*TEXT, *choice.token_ids]],
        SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=True),
    )[0]
    expected = values(forced.prompt_logprobs)[-30:]
    assert values(choice.logprobs) == pytest.approx(expected, abs=1e-3)
    assert max(values(choice.logprobs)) < 0.0
    assert choice.logprobs == plain.generate([TEXT], params)[0].choices[0].logprobs


def test_raw_logprobs_know_nothing_of_temperature_penalties_or_bias(
    engines: tuple[LLM, LLM],
) -> None:
    """vllm#34497: logits were edited in place before their log-probabilities were taken."""
    plain, drafting = engines
    params = SamplingParams(
        temperature=0.5,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        logit_bias={20: 5.0},
        top_k=5,
        seed=4,
        max_tokens=20,
        logprobs=True,
        top_logprobs=3,
        ignore_eos=True,
    )
    choice = drafting.generate([TEXT], params)[0].choices[0]
    forced = plain.generate(
        [[*TEXT, *choice.token_ids]],
        SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=True, top_logprobs=3),
    )[0]
    assert forced.prompt_logprobs is not None
    for ours, theirs in zip(choice.logprobs, forced.prompt_logprobs[-20:], strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [item.token_id for item in ours.top] == [item.token_id for item in theirs.top]


def test_processed_logprobs_are_those_of_the_distribution_that_was_drawn_from() -> None:
    """vllm#34497, PR #30846: raw and processed values were mixed up."""
    params = replace(
        SAMPLED, logprobs=True, logprobs_mode="processed", top_logprobs=4, top_k=4, temperature=0.7
    )
    harness = together(
        [Ask(PROMPT, params)], drafter_sets(COPYING)["all merged"](), logits_of=COPYING
    )
    plain = EngineHarness(logits_of=COPYING).generate(PROMPT, params)
    assert harness.results["q0"].logprobs == plain.logprobs
    for entry in harness.results["q0"].logprobs[0]:
        total = sum(torch.tensor(item.logprob).exp().item() for item in entry.top)
        assert total == pytest.approx(1.0, abs=1e-4)
    assert num_accepted(harness) > 3


def test_there_is_one_entry_per_token_in_every_event() -> None:
    """vllm-project/tpu-inference#2799: placeholders of rejected drafts were indexed like tokens."""
    params = replace(SAMPLED, logprobs=True, top_logprobs=2)
    asks = [
        Ask(PROMPT[: 4 + number], replace(params, seed=number, temperature=0.25 * (number % 4)))
        for number in range(16)
    ]
    harness = together(asks, drafter_sets(COPYING)["all merged"](), logits_of=COPYING)
    for result in harness.results.values():
        for event in result.events:
            assert event.logprobs is not None
            assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    assert num_accepted(harness) > 16


def test_a_stop_inside_a_block_takes_the_entries_behind_it_along() -> None:
    """vllm-project/tpu-inference#2799: the same where the output ends inside a block."""
    free = together([Ask(PROMPT, SAMPLED)], logits_of=COPYING).results["q0"].token_ids[0]
    for stop in sorted(set(free)):
        params = replace(SAMPLED, logprobs=True, stop_token_ids=(stop,))
        harness = together(
            [Ask(PROMPT, params)], drafter_sets(COPYING)["draft_model chain"](), logits_of=COPYING
        )
        result = harness.results["q0"]
        assert [entry.token_id for entry in result.logprobs[0]] == result.token_ids[0]
        assert result.token_ids[0][-1] == stop


def test_the_field_is_there_and_whole_streamed_or_not() -> None:
    """Pushkinist/rMLX#542: `logprobs` was null on the speculative path."""

    @in_loop
    async def ask() -> None:
        engine = FakeEngine(text_reply("several tokens per event"), tokens_per_step=4)
        async with client_of(service_over(engine)) as client:
            body = chat_body(logprobs=True, top_logprobs=2)
            whole = (await client.post("/v1/chat/completions", json=body)).json()
            body["stream"] = True
            stream = (await client.post("/v1/chat/completions", json=body)).text
        content = whole["choices"][0]["logprobs"]["content"]
        chunks = [event for event in events_of(stream) if event != "[DONE]"]
        parts = [chunk["choices"][0].get("logprobs") for chunk in chunks]
        streamed = [entry for part in parts if part for entry in part["content"]]
        assert len(content) == whole["usage"]["completion_tokens"]
        assert streamed == content
        assert all(len(entry["top_logprobs"]) == 2 for entry in content)

    ask()
