"""The engine's promises to those who submit: events, refusals, deadlines, cancellation, metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from slipstream.engine.messages import SpeculationOptions
from slipstream.errors import (
    ContextLengthError,
    InvalidRequestError,
    QueueFullError,
    SlipstreamError,
)
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from tests.support.drafters import (
    OracleDrafter,
    RecordingDrafter,
    ScriptedDrafter,
    true_outputs,
    true_outputs_by_prompt,
)
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.runs import GREEDY, MODEL, PROMPT, SAMPLED, Ask, metric, plainly, together
from tests.support.scripted_target import LogitsOf

EOS = 2


def counting_logits(nan_after: int | None = None) -> LogitsOf:
    """Every token is followed by its successor; nothing finite follows `nan_after`."""

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = torch.zeros(VOCAB_SIZE)
        logits[(tokens[-1] + 1) % VOCAB_SIZE] = 10.0
        return logits * math.nan if tokens[-1] == nan_after else logits

    return logits_of


def ending_logits(end: int) -> LogitsOf:
    """Counts up to `end`, then says EOS; what follows EOS is not finite."""
    counting = counting_logits(nan_after=EOS)

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = counting(tokens)
        if tokens[-1] == end:
            logits[EOS] = 20.0
        return logits

    return logits_of


# ---- events ----


def test_the_prompt_is_reported_once_before_any_token() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.submit("a", PROMPT, GREEDY, n=3)
    kinds = []
    while harness.engine.has_work:
        kinds += [type(event).__name__ for event in harness.engine.step()]
    assert kinds[0] == "PromptDone"
    assert kinds.count("PromptDone") == 1


def test_the_engine_keeps_the_report_of_its_last_step() -> None:
    harness = EngineHarness(logits_of=MODEL)
    assert harness.engine.last_report is None
    harness.submit("a", PROMPT, GREEDY)
    harness.engine.step()
    report = harness.engine.last_report
    assert report is not None
    assert report.num_rows == len(PROMPT)
    assert [commit.num_new for commit in report.commits] == [1]


def test_every_choice_ends_with_its_reason_its_times_and_its_counters() -> None:
    harness = EngineHarness(logits_of=MODEL)
    result = harness.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=9), n=3)
    assert sorted(result.last) == [0, 1, 2]
    for last in result.last.values():
        assert last.finish_reason in ("stop", "length")
        assert last.num_output_tokens == len(result.token_ids[last.index])
        assert last.timings is not None
        assert last.timings.queue_s <= last.timings.time_to_first_token_s
        assert last.timings.time_to_first_token_s <= last.timings.end_to_end_s
        assert last.speculation is not None
        assert last.speculation.num_steps == last.num_output_tokens


def test_the_pass_over_the_prompt_is_prefill_and_not_queueing() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.target.before_forward = lambda batch: harness.clock.advance(1.0)
    timings = harness.generate(PROMPT, SamplingParams(max_tokens=1)).last[0].timings
    assert timings is not None
    assert timings.queue_s < 0.1
    assert timings.time_to_first_token_s > 1.0
    assert metric(harness, "prefill_seconds_sum") == pytest.approx(1.0)


def test_choice_i_is_the_request_with_the_derived_seed_alone() -> None:
    ask = Ask(PROMPT, SAMPLED, n=4)
    choices = plainly([ask], MODEL)
    for index in range(4):
        params = SamplingParams(temperature=1.0, max_tokens=30, seed=derive(SAMPLED.seed, index))
        assert plainly([Ask(PROMPT, params)], MODEL)["q0", 0] == choices["q0", index]


def test_later_choices_find_the_prompt_in_the_cache() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.generate(PROMPT, SAMPLED, n=4)
    rows_of_prompts = sum(len(batch.tokens) for batch in harness.target.batches[:2])
    assert rows_of_prompts < 2 * len(PROMPT)


# ---- refusals ----


@pytest.mark.parametrize(
    ("prompt", "fields", "error"),
    [
        ((), {}, "has no tokens"),
        ((3, VOCAB_SIZE), {}, f"token id {VOCAB_SIZE}"),
        ((3, -1), {}, "token id -1"),
        (PROMPT, {"n": 0}, "n must be 1 to 128, got 0"),
        (PROMPT, {"n": 129}, "n must be 1 to 128, got 129"),
        (PROMPT, {"params": SamplingParams(logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias"),
        (PROMPT, {"params": SamplingParams(stop_token_ids=(VOCAB_SIZE,))}, "stop_token_ids"),
        (PROMPT, {"params": SamplingParams(allowed_token_ids=(VOCAB_SIZE,))}, "allowed_token_ids"),
        (PROMPT, {"speculation": SpeculationOptions(drafters=("medusa",))}, "'medusa'"),
        (PROMPT, {"speculation": SpeculationOptions(max_draft_len=-1)}, "max_draft_len"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_its_reason(
    prompt: tuple[int, ...], fields: dict[str, Any], error: str
) -> None:
    harness = EngineHarness(logits_of=MODEL)
    with pytest.raises(InvalidRequestError, match=error):
        harness.submit("a", prompt, **fields)
    assert not harness.engine.has_work


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused() -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(max_model_len=20))
    with pytest.raises(ContextLengthError, match="20 tokens and the context holds 20"):
        harness.submit("a", PROMPT)


def test_an_id_in_use_is_refused_and_can_be_used_again_later() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.submit("a", PROMPT, GREEDY)
    with pytest.raises(InvalidRequestError, match="already in use"):
        harness.engine.submit(harness.engine._groups["a"][0].group.submit)
    harness.run()
    harness.submit("a", PROMPT, GREEDY)
    harness.run()
    assert len(harness.results["a"].token_ids[0]) == 30


def test_a_full_queue_refuses_and_says_so() -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(max_queue_len=2))
    harness.submit("a", PROMPT, GREEDY, n=2)
    assert not harness.engine.has_room(1)
    with pytest.raises(QueueFullError, match="2 of at most 2 waiting"):
        harness.submit("b", PROMPT, GREEDY)
    harness.run()
    assert "b" not in harness.results


# ---- deadlines ----


def test_a_request_that_waits_too_long_for_its_place_fails_in_the_queue() -> None:
    setup = EngineSetup(max_num_requests=1, queue_timeout_s=1.0)
    harness = EngineHarness(logits_of=MODEL, setup=setup)
    endless = SamplingParams(temperature=0.0, max_tokens=230, ignore_eos=True)
    harness.submit("running", PROMPT, endless)
    harness.step()
    harness.submit("waiting", PROMPT, GREEDY)
    harness.run()
    failed = harness.results["waiting"].failed
    assert failed is not None
    assert failed.error == "RequestTimeoutError"
    assert "in the queue" in failed.message
    assert harness.results["running"].last[0].finish_reason == "length"


def test_the_queue_limit_does_not_count_after_a_request_has_started() -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(queue_timeout_s=0.05))
    result = harness.generate(PROMPT, GREEDY)
    assert result.failed is None
    assert harness.clock.now() > 0.05


@pytest.mark.parametrize("own_s", [None, 0.1])
def test_a_request_past_its_deadline_fails_and_leaves_nothing(own_s: float | None) -> None:
    setup = EngineSetup(request_timeout_s=0.1 if own_s is None else 60.0)
    harness = EngineHarness(logits_of=MODEL, setup=setup)
    result = harness.generate(PROMPT, SamplingParams(max_tokens=200), timeout_s=own_s)
    assert result.failed is not None
    assert result.failed.error == "RequestTimeoutError"
    assert "was not finished 0.1 s" in result.failed.message
    assert 8 <= len(result.token_ids[0]) <= 10  # steps of 0.01 s
    assert harness.kv.usage().num_leased == 0


# ---- cancellation ----


@pytest.mark.parametrize("at_step", [0, 1, 2, 5])
def test_a_cancelled_request_gives_its_pages_back_at_once(at_step: int) -> None:
    drafter = RecordingDrafter()
    harness = EngineHarness([drafter], logits_of=MODEL)
    harness.submit("a", PROMPT, SAMPLED, n=2)
    for _ in range(at_step):
        harness.step()
    harness.engine.cancel("a")
    assert not harness.engine.has_work
    assert harness.kv.usage().num_leased == 0
    assert not drafter.live
    harness.engine.check_integrity()


def test_cancelling_an_unknown_or_finished_request_is_harmless() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.engine.cancel("never seen")
    harness.generate(PROMPT, GREEDY)
    harness.engine.cancel("r0")
    assert metric(harness, "requests_finished_total", reason="cancelled") == 0


def test_the_gauges_say_what_is_left_after_the_last_request_was_cancelled() -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(max_num_requests=1))
    harness.submit("running", PROMPT, GREEDY)
    harness.submit("waiting", PROMPT, GREEDY)
    harness.step()
    harness.step()
    assert metric(harness, "requests_running") == 1
    assert metric(harness, "requests_waiting") == 1
    assert metric(harness, "kv_pages", cache="target", state="leased") > 0
    harness.engine.cancel_all()
    assert metric(harness, "requests_running") == 0
    assert metric(harness, "requests_waiting") == 0
    assert metric(harness, "kv_pages", cache="target", state="leased") == 0


def test_the_gauges_say_what_is_left_after_the_last_request_timed_out() -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(request_timeout_s=0.1))
    harness.generate(PROMPT, SamplingParams(max_tokens=200))
    assert metric(harness, "requests_running") == 0
    assert metric(harness, "kv_pages", cache="target", state="leased") == 0


# ---- faults of rows ----


def test_a_row_without_a_finite_logit_fails_its_request_and_no_other() -> None:
    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        return MODEL(tokens) * (math.nan if tokens[0] == 5 and len(tokens) == 9 else 1.0)

    harness = together([Ask((5, 6, 7)), Ask(PROMPT)], logits_of=logits_of)
    failed = harness.results["q0"].failed
    assert failed is not None
    assert failed.error == "EngineFailureError"
    assert "position 9" in failed.message
    assert harness.results["q1"].token_ids[0] == plainly([Ask(PROMPT)], MODEL)["q0", 0]


@pytest.mark.parametrize("draft_len", [0, 1, 4, 8])
def test_tokens_before_a_faulty_row_are_told_as_without_drafts(draft_len: int) -> None:
    truth = list(range(11, 20))
    drafter = OracleDrafter(true_outputs({"r0#0": truth}))
    setup = EngineSetup(max_draft_len=max(draft_len, 1), max_draft_nodes=max(draft_len, 1))
    harness = EngineHarness(
        [drafter] if draft_len else [], logits_of=counting_logits(nan_after=15), setup=setup
    )
    result = harness.generate((10,), GREEDY)
    assert result.token_ids[0] == [11, 12, 13, 14, 15]
    assert result.failed is not None
    assert "position 6" in result.failed.message


@pytest.mark.parametrize("end", range(11, 18))
def test_a_faulty_row_behind_the_end_of_the_output_is_nobodys_fault(end: int) -> None:
    script = {token: [token + 1, EOS, 77, 78] for token in range(10, 30)}
    script[end] = [EOS, 77, 78]
    harness = EngineHarness([ScriptedDrafter(script)], logits_of=ending_logits(end))
    result = harness.generate((10,), GREEDY)
    assert result.failed is None
    assert result.token_ids[0] == [*range(11, end + 1), EOS]
    assert result.last[0].finish_reason == "stop"


@pytest.mark.parametrize("num_choices", [1, 2, 5])
def test_all_choices_of_a_request_may_fail_in_one_step(num_choices: int) -> None:
    harness = EngineHarness(logits_of=counting_logits(nan_after=13))
    harness.submit("a", (10,), GREEDY, n=num_choices)
    harness.submit("b", (20,), GREEDY)
    events = []
    while harness.engine.has_work:
        events += harness.engine.step()
    mine = [event for event in events if getattr(event, "request_id", None) == "a"]
    assert [type(event).__name__ for event in mine].count("Failed") == 1
    assert type(mine[-1]).__name__ == "Failed"
    harness.engine.check_integrity()
    assert metric(harness, "requests_finished_total", reason="failed") == num_choices


# ---- what is said about speculation ----


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        (SpeculationOptions(), 8),
        (SpeculationOptions(max_draft_len=3), 3),
        (SpeculationOptions(max_draft_len=30), 8),
        (SpeculationOptions(max_draft_nodes=2), 2),
        (SpeculationOptions(enabled=False), 0),
        (SpeculationOptions(max_draft_len=0), 0),
        (SpeculationOptions(drafters=()), 0),
    ],
)
def test_the_counters_say_how_long_a_draft_the_request_may_get(
    options: SpeculationOptions, longest: int
) -> None:
    truth = true_outputs_by_prompt({PROMPT: plainly([Ask(PROMPT)], MODEL)["q0", 0]})
    harness = EngineHarness([OracleDrafter(truth)], logits_of=MODEL)
    result = harness.generate(PROMPT, GREEDY, speculation=options)
    stats = result.last[0].speculation
    assert stats is not None
    assert stats.max_draft_len == longest
    assert len(stats.num_draft_tokens_per_pos) == longest


def test_without_drafters_no_draft_is_promised() -> None:
    stats = EngineHarness(logits_of=MODEL).generate(PROMPT, GREEDY).last[0].speculation
    assert stats is not None
    assert stats.max_draft_len == 0


# ---- questions ----


def test_the_prefix_cache_can_be_emptied() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.generate(PROMPT, GREEDY)
    assert harness.engine.call("reset_prefix_cache") == 12
    assert harness.kv.usage().num_cached == 0
    assert harness.generate(PROMPT, GREEDY).prompt is not None


def test_the_integrity_and_the_metrics_can_be_asked_for() -> None:
    harness = EngineHarness(logits_of=MODEL)
    assert harness.engine.call("check_integrity") is True
    assert "slipstream_requests_running" in str(harness.engine.call("metrics"))


def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(SlipstreamError, match="no method 'nonsense'"):
        EngineHarness(logits_of=MODEL).engine.call("nonsense")
