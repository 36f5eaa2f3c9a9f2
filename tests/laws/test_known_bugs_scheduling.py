"""Known bugs of speculative servers: preemption, cancellation, pauses, faults, waiting.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.engine.messages import SpeculationOptions
from slipstream.sampling.params import SamplingParams
from tests.support.drafters import (
    FaultKind,
    FaultyDrafter,
    HostileDrafter,
    OracleDrafter,
    RecordedEvents,
    true_outputs_by_prompt,
)
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    SAMPLED,
    Ask,
    drafter_sets,
    guarded,
    metric,
    num_accepted,
    plainly,
    submit_all,
    together,
    tokens_of,
)
from tests.support.tiny_llm import tiny_llm, write_tiny_model

PROMPTS = [tuple(range(100 + 3 * number, 112 + 3 * number)) for number in range(4)]


# ---- preemption and pauses ----


@pytest.mark.parametrize("draft_len", [0, 1, 3, 5])
def test_preemption_at_any_step_changes_no_answer(draft_len: int) -> None:
    """vllm#49620, #41190: what a step gave after its request had been preempted was used."""
    asks = [Ask(PROMPTS[0], replace(SAMPLED, max_tokens=12)), Ask(PROMPTS[1], GREEDY)]
    expected = plainly(asks, COPYING)
    setup = EngineSetup(max_draft_len=max(draft_len, 1), max_draft_nodes=max(2 * draft_len, 1))
    for at_step in range(12):
        drafters = drafter_sets(COPYING)["all merged"]() if draft_len else []
        harness = EngineHarness(drafters, logits_of=COPYING, setup=setup)
        submit_all(harness, asks)

        def preempt(step: int, harness: EngineHarness = harness, at_step: int = at_step) -> None:
            if step == at_step:
                for request in list(harness.scheduler.running):
                    harness.scheduler._preempt(request)

        harness.run(on_step=preempt)
        assert tokens_of(harness) == expected


@pytest.mark.parametrize("kind", list(drafter_sets(COPYING)))
def test_preemption_for_memory_changes_no_answer(kind: str) -> None:
    """vllm#49620: the same where memory decides who is preempted and when."""
    asks = [Ask(prompt, replace(SAMPLED, seed=number)) for number, prompt in enumerate(PROMPTS)]
    setup = EngineSetup(num_pages=22, max_model_len=60, high_at=1.0)
    harness = together(asks, drafter_sets(COPYING)[kind](), logits_of=COPYING, setup=setup)
    assert metric(harness, "preemptions_total") > 0
    assert tokens_of(harness) == plainly(asks, COPYING)


def test_a_request_that_is_left_out_of_steps_goes_on_where_it_was() -> None:
    """vllm#31944: a request that had paused for a step was resumed as if it were new."""
    asks = [Ask(prompt, replace(SAMPLED, seed=number)) for number, prompt in enumerate(PROMPTS)]
    setup = EngineSetup(max_step_tokens=3)
    harness = together(asks, drafter_sets(COPYING)["all merged"](), logits_of=COPYING, setup=setup)
    assert max(len(batch.branches) for batch in harness.target.batches) <= 3
    assert tokens_of(harness) == plainly(asks, COPYING)


# ---- cancellation ----


def test_a_thousand_cancellations_leave_counters_that_only_grow() -> None:
    """vllm#28473: a request aborted during verification counted minus one accepted token and
    stopped the metrics thread."""
    truth = plainly([Ask(prompt, GREEDY) for prompt in PROMPTS], MODEL)
    outputs = {prompt: truth[f"q{number}", 0] for number, prompt in enumerate(PROMPTS)}
    harness = EngineHarness([OracleDrafter(true_outputs_by_prompt(outputs))], logits_of=MODEL)
    counters = ["accepted_tokens", "draft_tokens", "drafts", "emitted_tokens"]
    before = [0.0] * len(counters)
    for number in range(1000):
        harness.submit("a", PROMPTS[number % 4], GREEDY)
        for _ in range(number % 4 + 1):
            harness.clock.advance(0.01)
            harness.engine.step()
        harness.engine.cancel("a")
        if number % 50 == 0:
            now = [metric(harness, f"spec_decode_num_{name}_total") for name in counters]
            assert all(a <= b for a, b in zip(before, now, strict=True))
            before = now
    harness.engine.check_integrity()
    assert metric(harness, "requests_finished_total", reason="cancelled") == 1000
    assert harness.generate(PROMPTS[0], GREEDY).token_ids[0] == outputs[PROMPTS[0]]


def test_pages_are_back_at_once_when_the_client_leaves(tmp_path: Path) -> None:
    """ROCm/ATOM#1562: a client that left in the middle kept its request running and its pages
    held."""
    path = write_tiny_model(tmp_path / "model")
    with tiny_llm(path, ["suffix"]) as llm:
        stream = llm.stream([5, 6, 7], SamplingParams(max_tokens=400, ignore_eos=True))
        next(stream)
        assert llm.engine.kv.usage().num_leased > 0
        stream.close()  # type: ignore[attr-defined]  # it is a generator
        assert llm.engine.kv.usage().num_leased == 0
        assert not llm.engine.has_work


# ---- faults of drafters ----

FAULTS: list[FaultKind] = [
    "raises",
    "slow",
    "too_few",
    "too_many",
    "not_a_tree",
    "unknown_token",
    "too_deep",
    "too_wide",
    "observe_raises",
    "release_raises",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_drafter_is_benched_and_no_request_notices(fault: FaultKind) -> None:
    """llama.cpp#22554, openvino.genai#3293, vllm#24662: what went wrong in a drafter ended the
    request or the server."""
    asks = [Ask(prompt, replace(SAMPLED, seed=number)) for number, prompt in enumerate(PROMPTS)]
    harness = EngineHarness(logits_of=COPYING)
    events = RecordedEvents()
    bad = guarded(FaultyDrafter(fault, clock=harness.clock), harness.clock, events)
    (good,) = drafter_sets(COPYING)["suffix tree"]()
    harness.engine._stages.proposer.drafters = (bad, good)
    submit_all(harness, asks)
    harness.run()
    assert tokens_of(harness) == plainly(asks, COPYING)
    assert events.faults
    assert events.active[0] is False
    assert num_accepted(harness) > 0


def test_a_drafter_that_errs_now_and_then_comes_back() -> None:
    """llama.cpp#22554: one fault must not switch drafting off for good."""
    truth = plainly([Ask(PROMPT)])["q0", 0]
    harness = EngineHarness(logits_of=MODEL)
    events = RecordedEvents()
    fails_once = FaultyDrafter("raises", is_failing=lambda call: call == 2)
    oracle = OracleDrafter(true_outputs_by_prompt({PROMPT: truth}), name="faulty")
    fails_once.tree_for = oracle.tree_for  # type: ignore[method-assign]  # right when it works
    drafter = guarded(fails_once, harness.clock, events)
    harness.engine._stages.proposer.drafters = (drafter,)
    options = SpeculationOptions(max_draft_len=1)
    for _ in range(12):
        result = harness.generate(PROMPT, GREEDY, speculation=options)
        assert result.token_ids[0] == truth
    assert events.active == [False, True]


@pytest.mark.parametrize("num_pages", [24, 256])
def test_hostile_drafts_change_no_answer_and_take_no_page_from_anybody(num_pages: int) -> None:
    """vllm#49369 and others: a drafter that is always wrong may cost time, never an answer."""
    asks = [Ask(prompt, replace(SAMPLED, seed=number)) for number, prompt in enumerate(PROMPTS)]
    setup = EngineSetup(num_pages=num_pages, max_model_len=60, high_at=1.0)
    plain = together(asks, setup=setup)
    harness = together(asks, [HostileDrafter(VOCAB_SIZE)], setup=setup)
    assert tokens_of(harness) == tokens_of(plain)
    assert metric(harness, "preemptions_total") <= metric(plain, "preemptions_total") + 1


# ---- waiting ----


def test_no_priority_starves_another() -> None:
    """Source: our own design. Urgent requests keep coming; the patient one is still served."""
    setup = EngineSetup(max_num_requests=1, starvation_s=0.5, max_queue_len=500)
    harness = EngineHarness(logits_of=MODEL, setup=setup)
    short = SamplingParams(temperature=0.0, max_tokens=4)
    harness.submit("first", PROMPT, short, priority=3)
    harness.step()
    harness.submit("patient", PROMPT, short, priority=0)
    for number in range(200):
        harness.submit(f"urgent{number}", PROMPT, short, priority=3)
        for _ in range(3):
            harness.step()
        if harness.results["patient"].last:
            break
    assert 40 < number < 80  # 3 levels of 0.5 s, and those urgent ones that have waited as long
    harness.run()


def test_urgent_requests_go_first_until_then() -> None:
    """Source: our own design. Of two waiting requests the one of higher priority starts first."""
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(max_num_requests=1))
    harness.submit("running", PROMPT, GREEDY)
    harness.step()
    harness.submit("plain", PROMPT, GREEDY)
    harness.submit("urgent", PROMPT, GREEDY, priority=1)
    order: list[str] = []

    def note(step: int) -> None:
        order.extend(
            name for name, result in harness.results.items() if result.last and name not in order
        )

    harness.run(on_step=note)
    assert order[:2] == ["running", "urgent"]


def test_a_batch_that_drains_to_nothing_neither_hangs_nor_forgets() -> None:
    """vllm#54011: acceptance collapsed and the engine hung while a batch of 256 ran dry."""
    asks = [
        Ask((5, *PROMPT[:10]), replace(GREEDY, max_tokens=1 + number, ignore_eos=True))
        for number in range(64)
    ]
    longest = plainly([asks[-1]])["q0", 0]
    oracle = OracleDrafter(true_outputs_by_prompt({asks[0].prompt: longest}))
    setup = EngineSetup(max_num_requests=64, max_step_tokens=1024, num_pages=2000)
    harness = together(asks, [oracle], setup=setup)
    for number in range(64):
        result = harness.results[f"q{number}"]
        assert result.token_ids[0] == longest[: 1 + number]
        stats = result.last[0].speculation
        assert stats is not None
        assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert metric(harness, "requests_running") == 0
