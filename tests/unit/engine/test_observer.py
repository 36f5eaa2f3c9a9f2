"""From what happens in the engine to its metrics."""

from __future__ import annotations

import logging

import pytest

from slipstream.engine.messages import SpeculationOptions
from slipstream.sampling.params import SamplingParams
from tests.support.drafters import OracleDrafter, true_outputs_by_prompt
from tests.support.engine import EngineHarness, EngineSetup
from tests.support.runs import (
    GREEDY,
    MODEL,
    PROMPT,
    Ask,
    metric,
    num_accepted,
    num_drafted,
    plainly,
    stats_of,
    together,
)

OUTPUT = plainly([Ask(PROMPT)], MODEL)["q0", 0]


def oracle(wrong_every: int = 0) -> OracleDrafter:
    truth = true_outputs_by_prompt({PROMPT: OUTPUT})
    return OracleDrafter(truth, wrong_every=wrong_every, vocab_size=300)


def test_tokens_and_requests_are_counted() -> None:
    harness = together([Ask(PROMPT), Ask(PROMPT[:7], n=2)])
    num_output = sum(
        len(ids) for result in harness.results.values() for ids in result.token_ids.values()
    )
    assert metric(harness, "generation_tokens_total") == num_output
    assert metric(harness, "prompt_tokens_total") == 20 + 7 + 7
    assert metric(harness, "requests_finished_total", reason="length") == 3
    assert metric(harness, "time_to_first_token_seconds_count") == 3
    assert metric(harness, "end_to_end_seconds_count") == 3


def test_the_metrics_of_speculation_are_the_sums_of_the_requests_counters() -> None:
    harness = together([Ask(PROMPT)] * 3, [oracle(wrong_every=4)])
    assert metric(harness, "spec_decode_num_draft_tokens_total") == num_drafted(harness)
    assert metric(harness, "spec_decode_num_accepted_tokens_total") == num_accepted(harness)
    stats = stats_of(harness)
    for name, per_position in (
        ("num_draft_tokens", [item.num_draft_tokens_per_pos for item in stats]),
        ("num_accepted_tokens", [item.num_accepted_tokens_per_pos for item in stats]),
    ):
        for depth in range(8):
            expected = sum(row[depth] for row in per_position if depth < len(row))
            value = metric(harness, f"spec_decode_{name}_per_pos_total", position=str(depth))
            assert value == expected
    drafts = metric(harness, "spec_decode_num_drafts_total")
    mean = metric(harness, "spec_decode_mean_acceptance_length")
    assert mean == pytest.approx(1 + num_accepted(harness) / drafts)
    drafter = metric(harness, "spec_decode_drafter_accepted_tokens_total", drafter="oracle")
    assert drafter == num_accepted(harness)


def test_without_drafts_nothing_is_counted_as_drafted() -> None:
    asks = [Ask(PROMPT, speculation=SpeculationOptions(enabled=False))]
    harness = together(asks, [oracle()])
    assert metric(harness, "spec_decode_num_drafts_total") == 0
    assert metric(harness, "spec_decode_mean_acceptance_length") == 1.0


def test_gaps_between_tokens_are_counted_per_token() -> None:
    harness = together([Ask(PROMPT)], [oracle()])
    num_first_step = harness.results["q0"].events[0].num_output_tokens
    assert metric(harness, "inter_token_seconds_count") == len(OUTPUT) - num_first_step


def test_prefix_hits_are_counted() -> None:
    harness = EngineHarness(logits_of=MODEL)
    harness.generate(PROMPT, GREEDY)
    harness.generate(PROMPT, GREEDY)
    assert metric(harness, "prefix_query_tokens_total") == 40
    assert metric(harness, "prefix_hit_tokens_total") == 16
    prompt = harness.results["r1"].prompt
    assert prompt is not None
    assert prompt.num_cached_tokens == 16


def test_preemptions_are_counted() -> None:
    setup = EngineSetup(num_pages=16, max_model_len=60)
    asks = [Ask(tuple(range(10 * i, 10 * i + 20))) for i in range(3, 6)]
    assert metric(together(asks, setup=setup), "preemptions_total") > 0


def test_rows_of_steps_are_counted() -> None:
    harness = together([Ask(PROMPT)])
    assert metric(harness, "step_rows_count") == len(harness.target.batches)
    assert metric(harness, "step_rows_sum") == sum(len(b.tokens) for b in harness.target.batches)


def test_little_memory_is_said_once_and_not_in_every_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = EngineSetup(num_pages=14, max_model_len=60)
    with caplog.at_level(logging.WARNING, logger="slipstream.engine"):
        together([Ask(PROMPT, SamplingParams(temperature=0.0, max_tokens=34))], setup=setup)
    warnings = [record for record in caplog.records if "KV pages" in record.message]
    assert len(warnings) == 1
    assert "% of the KV pages are in use" in warnings[0].message


def test_a_failed_request_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(request_timeout_s=0.05))
    with caplog.at_level(logging.WARNING, logger="slipstream.engine"):
        harness.generate(PROMPT, SamplingParams(max_tokens=100))
    assert "request r0 failed: the request was not finished" in caplog.text
    assert metric(harness, "requests_finished_total", reason="failed") == 1
    assert metric(harness, "end_to_end_seconds_count") == 0
