"""Known bugs of speculative servers: parameters that drafts bent, skipped or ignored.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream.config.speculation import NgramConfig
from slipstream.engine.messages import SpeculationOptions
from slipstream.protocol.fields import REQUEST_FIELDS
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import SamplingState
from tests.support.draft_models import make_draft_model
from tests.support.drafters import HostileDrafter, OracleDrafter, true_outputs_by_prompt
from tests.support.engine import VOCAB_SIZE, EngineHarness
from tests.support.fake_engine import FakeEngine, text_reply
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    SAMPLED,
    Ask,
    configured,
    drafter_sets,
    metric,
    num_accepted,
    plainly,
    stats_of,
    together,
    tokens_of,
)
from tests.support.scripted_target import looping_logits
from tests.support.service import chat_body, client_of, events_of, in_loop, service_over

LONG = replace(SAMPLED, max_tokens=200, ignore_eos=True)


def walked(output: Sequence[int]) -> list[torch.Tensor]:
    """The copying model's logits before each token of an answer to PROMPT."""
    tokens = [*PROMPT, *output]
    return [COPYING(tuple(tokens[:end])) for end in range(len(PROMPT), len(tokens))]


def test_a_forbidden_token_never_appears_in_five_thousand() -> None:
    """vllm#42744, #38202, sglang#10617: logit_bias reached only the bonus tokens of a block."""
    plain = together([Ask(PROMPT, LONG, n=2)], logits_of=COPYING)
    counts: dict[int, int] = {}
    for output in tokens_of(plain).values():
        for token in output:
            counts[token] = counts.get(token, 0) + 1
    frequent = max(counts, key=lambda token: counts[token])
    params = replace(LONG, logit_bias={frequent: -100.0})
    harness = together(
        [Ask(PROMPT, params, n=25)], drafter_sets(COPYING)["suffix tree"](), logits_of=COPYING
    )
    tokens = [token for output in tokens_of(harness).values() for token in output]
    assert len(tokens) == 5000
    assert frequent not in tokens
    assert num_accepted(harness) > 500


def test_no_token_below_min_p_appears_at_any_position() -> None:
    """vllm#42744, sglang#10617: min_p was refused with drafts, or kept by bonus tokens only."""
    params = replace(LONG, min_p=0.2, max_tokens=100)
    harness = together(
        [Ask(PROMPT, params, n=5)], drafter_sets(COPYING)["all merged"](), logits_of=COPYING
    )
    for output in tokens_of(harness).values():
        for token, logits in zip(output, walked(output), strict=True):
            assert logits[token] >= logits.max() + torch.log(torch.tensor(0.2)) - 1e-5
    assert num_accepted(harness) > 50


def test_what_is_streamed_keeps_to_the_parameters_like_the_whole_answer() -> None:
    """sglang#10617, PR #11555: the same with streaming; every event keeps to logit_bias."""
    params = replace(LONG, logit_bias={103: -100.0, 110: 50.0}, max_tokens=60)
    harness = together(
        [Ask(PROMPT, params)], drafter_sets(COPYING)["suffix tree"](), logits_of=COPYING
    )
    streamed = [token for event in harness.results["q0"].events for token in event.token_ids]
    assert streamed == plainly([Ask(PROMPT, params)], COPYING)["q0", 0]
    assert 103 not in streamed


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1},
        {"logit_bias": {100: 3.0, 105: -100.0}},
        {"bad_words": ("b", "cd", "efg")},
        {"allowed_token_ids": tuple(range(100, 112))},
        {"min_tokens": 20, "stop_token_ids": tuple(range(100, 115))},
        {"ignore_eos": True},
        {"top_k": 3},
        {"top_p": 0.6},
        {"presence_penalty": 1.5, "frequency_penalty": -0.5},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_every_parameter_works_with_drafts_exactly_as_without(
    fields: dict[str, Any], temperature: float
) -> None:
    """vllm#42744, NVIDIA/TensorRT-LLM#17701: parameters were refused or silently ignored."""
    asks = [Ask(PROMPT, replace(SAMPLED, temperature=temperature, **fields)), Ask(PROMPT[:8])]
    harness = together(asks, drafter_sets(COPYING)["all merged"](), logits_of=COPYING)
    assert tokens_of(harness) == plainly(asks, COPYING)
    assert num_accepted(harness) > 0


def test_a_repetition_penalty_ends_a_loop_with_drafts_as_without() -> None:
    """sglang#28180: with drafts the penalty missed accepted tokens and the text looped."""
    loop = list(range(100, 108))
    logits_of = looping_logits(VOCAB_SIZE, [*loop, *range(108, 300), *range(100)])

    def looping(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = logits_of(tokens)
        if tokens[-1] == loop[-1]:
            logits[loop[0]] = 12.0
        return logits

    params = SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=60)
    asks = [Ask(tuple(loop * 2), params)]
    drafters = [configured(NgramConfig(min_n=1))]
    harness = together(asks, drafters, logits_of=looping)
    output = tokens_of(harness)["q0", 0]
    assert output == plainly(asks, looping)["q0", 0]
    assert set(output) - set(loop)
    free = together(
        [Ask(asks[0].prompt, replace(params, repetition_penalty=1.0))], logits_of=looping
    )
    assert set(tokens_of(free)["q0", 0]) == set(loop)


@pytest.mark.parametrize(
    "spec",
    [spec for spec in REQUEST_FIELDS if spec.status == "refused" and "chat" in spec.endpoints],
    ids=lambda spec: spec.name,
)
def test_a_parameter_that_is_not_supported_is_refused_and_never_ignored(spec: Any) -> None:
    """TensorRT-LLM#17701: penalties were silently ignored in one mode of speculation."""

    @in_loop
    async def post() -> None:
        engine = FakeEngine(text_reply("text"))
        async with client_of(service_over(engine)) as client:
            body = chat_body(**{spec.name: {"some": "value"}})
            response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == spec.name
        assert not engine.submitted

    post()


def test_a_grammar_is_refused_with_a_reason_instead_of_half_obeyed() -> None:
    """vllm#11484: structured output together with speculation crashed outright."""

    @in_loop
    async def post() -> None:
        async with client_of(service_over(FakeEngine(text_reply("{}")))) as client:
            body = chat_body(response_format={"type": "json_object"})
            response = await client.post("/v1/chat/completions", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
        assert "structured" in error["message"] or "response_format" in error["message"]

    post()


def test_text_that_looks_like_a_tool_call_passes_through_untouched() -> None:
    """vllm#46183: a tool parser mangled plain text of requests without tools, more often with
    several tokens per step."""
    text = '<tool_call>{"name": "x"}</tool_call> [TOOL_CALLS] <think>hm</think> done'

    @in_loop
    async def stream() -> None:
        async with client_of(service_over(FakeEngine(text_reply(text)))) as client:
            response = await client.post("/v1/chat/completions", json=chat_body(stream=True))
        chunks = [event for event in events_of(response.text) if event != "[DONE]"]
        parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(parts) == text

    stream()


# ---- seeds ----


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
def test_the_seed_decides_the_answer_and_nothing_else_does(kind: str) -> None:
    """vllm#6038: `seed` was ignored with drafts."""
    make = drafter_sets(COPYING)[kind]
    answers = []
    for seed in (1, 1, 2):
        harness = together([Ask(PROMPT, replace(SAMPLED, seed=seed))], make(), logits_of=COPYING)
        answers.append(tokens_of(harness)["q0", 0])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("vocab_size", [300, 5000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=200),
        SamplingParams(top_p=0.99),
        SamplingParams(min_p=0.001),
    ],
    ids=["unfiltered", "top_k", "top_p", "min_p"],
)
def test_every_way_of_drawing_honours_the_seed(params: SamplingParams, vocab_size: int) -> None:
    """vllm#13196: one of the sampling back ends was never given the generator."""
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(2))
    sampler = Sampler(vocab_size, ())
    drawn = [
        sampler.sample(logits, [RowRequest(params, SamplingState(), seed, 5)])[0]
        for seed in (*range(20), *range(20))
    ]
    assert drawn[:20] == drawn[20:]
    assert len(set(drawn)) > 10


def test_a_request_running_beside_changes_no_seeded_answer() -> None:
    """local-inference-lab/vllm#98: the drafter drew from the stream that requests shared."""
    asks = [Ask(PROMPT, SAMPLED)]
    alone = together(asks, drafter_sets(COPYING)["all merged"](), logits_of=COPYING)
    others = [Ask((5 + i, 6, 7), replace(SAMPLED, seed=i, temperature=0.5 * i)) for i in range(5)]
    beside = together([*asks, *others], drafter_sets(COPYING)["all merged"](), logits_of=COPYING)
    assert tokens_of(beside)["q0", 0] == tokens_of(alone)["q0", 0]


def test_the_same_request_is_accepted_alike_every_time() -> None:
    """vllm#53436: the same text came at another speed from run to run."""
    kinds = drafter_sets(COPYING)
    for kind in ("ngram longest_latest", "suffix tree", "draft_model tree", "all merged"):
        seen = {
            str(stats_of(together([Ask(PROMPT)], kinds[kind](), logits_of=COPYING)))
            for _ in range(4)
        }
        assert len(seen) == 1


# ---- who drafted ----


def test_the_answer_and_the_metrics_say_which_drafters_were_at_work() -> None:
    """unslothai/unsloth#10234: a hidden default had switched speculation on."""
    harness = together([Ask(PROMPT)], drafter_sets(COPYING)["all merged"](), logits_of=COPYING)
    assert harness.engine.info.drafters == ("ngram", "suffix", "draft_model")
    (stats,) = stats_of(harness)
    assert set(stats.drafters) <= {"ngram", "suffix", "draft_model"}
    assert sum(stats.drafters.values()) >= stats.num_accepted_tokens > 0
    for name in harness.engine.info.drafters:
        assert metric(harness, "drafter_active", drafter=name) == 1


def test_a_request_can_switch_speculation_off_and_choose_its_drafters() -> None:
    """unslothai/unsloth#10234, vllm#6993: no default may be silent or forced."""
    truth = plainly([Ask(PROMPT)])["q0", 0]
    oracle = OracleDrafter(true_outputs_by_prompt({PROMPT: truth}))
    hostile = HostileDrafter(VOCAB_SIZE)
    for options, accepted, by_hostile in (
        (SpeculationOptions(enabled=False), False, False),
        (SpeculationOptions(drafters=("oracle",)), True, False),
        (SpeculationOptions(drafters=("hostile",)), False, True),
    ):
        hostile.contexts.clear()
        harness = together([Ask(PROMPT, GREEDY, speculation=options)], [oracle, hostile])
        assert tokens_of(harness)["q0", 0] == truth
        assert (num_accepted(harness) > 10) is accepted
        assert bool(hostile.contexts) is by_hostile


def test_a_draft_model_with_the_target_s_own_logits_is_never_wrong() -> None:
    """Source: our own decision 0001. Shared noise makes equal models agree at any temperature."""
    for temperature in (0.0, 0.5, 1.0, 2.0):
        params = replace(SAMPLED, temperature=temperature)
        harness = together([Ask(PROMPT, params)], [make_draft_model(MODEL).drafter])
        (stats,) = stats_of(harness)
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 20
        assert (
            harness.results["q0"].token_ids[0]
            == EngineHarness(logits_of=MODEL).generate(PROMPT, params).token_ids[0]
        )
