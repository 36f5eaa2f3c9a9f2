"""The verdict on benchmarks whose limit is known because it was put there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.bench.divergence import Comparison, Divergence
from slipstream.bench.results import Measurement
from slipstream.bench.summary import summarize, summarize_by
from slipstream.bench.verdict import Decomposition, Verdict, decompose, judge
from tests.unit.bench.synthetic import Speed, measurement

EQUAL = Comparison(10, ())
PLAIN = Speed(num_tokens=201, step_s=0.02)


def verdict_on(measurements: list[Measurement], comparison: Comparison = EQUAL) -> Verdict:
    categories = summarize_by(measurements, lambda item: item.category)
    return judge(summarize("all", measurements), list(categories.values()), comparison)


def six(on: Speed, off: Speed = PLAIN) -> list[Measurement]:
    return [measurement(off, on, unit=unit) for unit in range(6)]


def drafting(**fields: float) -> Speed:
    """All of 100 steps have a draft of one token and keep it, at the price of a plain step."""
    speed = Speed(num_tokens=201, step_s=0.02, num_drafts=100, depth=1, accepted=100)
    return replace(speed, **fields)  # type: ignore[arg-type]  # the fields' types differ


def test_the_parts_multiply_to_the_decode_ratio() -> None:
    on = drafting(step_s=0.03, draft_share=0.1)
    summary = summarize("all", six(on))
    parts = decompose(summary)
    assert parts is not None
    assert parts.tokens_per_step == pytest.approx(2.0)
    assert parts.step_cost == pytest.approx(1.5)
    assert parts.drafting_cost == pytest.approx(0.15)
    assert parts.width_cost == pytest.approx(0.35)
    assert summary.ratios.decode is not None
    assert parts.decode_ratio == pytest.approx(summary.ratios.decode.value)


def test_the_prompts_time_enters_the_end_to_end_ratio() -> None:
    off, on = replace(PLAIN, ttft_s=4.0), drafting(ttft_s=4.0)
    summary = summarize("all", six(on, off))
    parts = decompose(summary)
    assert parts is not None
    assert parts.prefill_share == pytest.approx(0.5)
    assert summary.ratios.e2e is not None
    assert parts.end_to_end(parts.decode_ratio) == pytest.approx(summary.ratios.e2e.value)


def test_rejected_drafts_are_named() -> None:
    on = drafting(num_drafts=180, depth=4, accepted=20, step_s=0.021)
    verdict = verdict_on(six(on))
    assert verdict.limit == "acceptance"
    assert "rejected drafts" in verdict.text


def test_missing_drafts_are_named() -> None:
    verdict = verdict_on(six(drafting(num_drafts=20, accepted=20, step_s=0.02)))
    assert verdict.limit == "coverage"
    assert "11% of the steps have one" in verdict.text


def test_the_cost_of_wider_passes_is_named() -> None:
    verdict = verdict_on(six(drafting(step_s=0.035)))
    assert verdict.limit == "width"
    assert "0.75 plain steps" in verdict.text


def test_the_cost_of_drafting_is_named() -> None:
    verdict = verdict_on(six(drafting(step_s=0.035, draft_share=0.4)))
    assert verdict.limit == "drafting"


def test_a_long_prompt_is_named() -> None:
    verdict = verdict_on(six(drafting(ttft_s=20.0), replace(PLAIN, ttft_s=20.0)))
    assert verdict.limit == "prefill"
    assert "83% of the time passes before the first token" in verdict.text


def test_perfect_speculation_is_limited_by_nothing() -> None:
    assert verdict_on(six(drafting())).limit == "nothing"


def test_no_draft_at_all_is_said() -> None:
    verdict = verdict_on(six(PLAIN))
    assert verdict.limit == "no drafts"
    assert "Nothing was drafted" in verdict.text


def test_steps_that_were_not_counted_leave_the_ratio_and_no_parts() -> None:
    measurements = six(drafting())
    uncounted = []
    for item in measurements:
        runs = dict(item.runs)
        answer = runs["off"].answers[0]
        turn = replace(answer.turns[0], counts=replace(answer.turns[0].counts, num_steps=0))
        runs["off"] = replace(runs["off"], answers=(replace(answer, turns=(turn,)),))
        uncounted.append(replace(item, runs=runs))
    verdict = verdict_on(uncounted)
    assert verdict.decomposition is None
    assert "2.00" in verdict.text


def test_being_slower_is_said_plainly() -> None:
    verdict = verdict_on(six(drafting(step_s=0.05)))
    assert "it is slower" in verdict.text


def test_a_difference_within_chance_is_said_to_be_none() -> None:
    ons = [0.018, 0.022, 0.019, 0.021, 0.0195, 0.0205]
    measurements = [
        measurement(PLAIN, replace(PLAIN, step_s=step_s), unit=unit)
        for unit, step_s in enumerate(ons)
    ]
    assert "tell from chance" in verdict_on(measurements).text


def test_a_difference_within_the_noise_of_the_machine_is_said_to_be_none() -> None:
    on, control = replace(PLAIN, step_s=0.0195), [0.019, 0.0191, 0.0195, 0.0202, 0.0207, 0.0204]
    measurements = [
        measurement(PLAIN, on, unit=unit, control=replace(PLAIN, step_s=step_s))
        for unit, step_s in enumerate(control)
    ]
    text = verdict_on(measurements).text
    assert "tell from chance" in text
    assert "off against off gives 1.0" in text


def test_a_drafted_step_cheaper_than_a_plain_one_is_said_to_be_noise() -> None:
    assert "noise" in verdict_on(six(drafting(step_s=0.015))).text
    assert "noise" not in verdict_on(six(drafting(step_s=0.0199))).text


def test_categories_below_the_promise_are_named() -> None:
    measurements = [
        measurement(PLAIN, drafting(), unit=unit, category="edit") for unit in range(6)
    ] + [
        measurement(PLAIN, replace(PLAIN, step_s=0.025), unit=unit, category="chat")
        for unit in range(6, 12)
    ]
    text = verdict_on(measurements).text
    assert "Below 0.97 with confidence: chat" in text
    assert "largest in edit" in text


def test_divergences_come_first() -> None:
    found = Divergence("chat/0", "greedy", 0, "on", 0, 5)
    text = verdict_on(six(drafting()), Comparison(10, (found,))).text
    assert text.startswith("1 output differs")
    assert "audit lossless" in text


def test_outputs_that_keep_only_their_law_are_said_to_be_left_out() -> None:
    text = verdict_on(six(drafting()), Comparison(10, (), ("seeded",))).text
    assert text.startswith("Sampled outputs were not compared")


def test_loops_are_named_with_the_gain_without_them() -> None:
    measurements = [*six(PLAIN), measurement(PLAIN, drafting(), unit=9, tokens=[1, 2, 3] * 67)]
    text = verdict_on(measurements).text
    assert "1 of 7 plain outputs are degenerate loops" in text
    assert "without them the gain is 1.00" in text


def test_lifting_a_limit_that_costs_nothing_changes_nothing() -> None:
    parts = Decomposition(
        tokens_per_step=2.0,
        step_cost=1.0,
        drafting_cost=0.0,
        width_cost=0.0,
        draft_reach=1.0,
        coverage=1.0,
        prefill_share=0.0,
    )
    assert set(parts.without().values()) == {2.0}
