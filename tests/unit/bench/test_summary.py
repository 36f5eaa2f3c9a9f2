"""Numbers of a part of a benchmark, worked out by hand."""

from __future__ import annotations

import pytest

from slipstream.bench.summary import summarize, summarize_by
from tests.unit.bench.synthetic import Speed, measurement

PLAIN = Speed(num_tokens=101, ttft_s=1.0, step_s=0.04)
FASTER = Speed(num_tokens=101, ttft_s=1.0, step_s=0.05, num_drafts=40, depth=2, accepted=50)


def test_one_mode_by_itself() -> None:
    off = summarize("all", [measurement(PLAIN, FASTER)]).modes["off"]
    assert off.num_tokens == 101
    assert off.wall_s == pytest.approx(5.0)
    assert off.tokens_per_s == pytest.approx(101 / 5)
    assert off.decode_tokens_per_s == pytest.approx(25)
    assert off.decode_step_s == pytest.approx(0.04)
    assert off.prefill_share == pytest.approx(0.2)
    assert off.ttft_median_s == pytest.approx(1.0)
    assert off.e2e_median_s == pytest.approx(5.0)
    assert off.outside_share == pytest.approx(0.0)


def test_what_speculation_did() -> None:
    drafts = summarize("all", [measurement(PLAIN, FASTER)]).drafts
    assert drafts.mean_acceptance_length == pytest.approx(1 + 50 / 40)
    assert drafts.tokens_per_step == pytest.approx(100 / 50)
    assert drafts.drafted_step_share == pytest.approx(40 / 50)
    assert drafts.node_utilisation == pytest.approx(50 / 80)


def test_acceptance_is_of_the_drafts_that_reached_a_depth() -> None:
    speed = Speed(num_drafts=40, depth=2, accepted=10)
    assert summarize("all", [measurement(PLAIN, speed)]).drafts.acceptance_at == (0.25, 0.0)


def test_ratios_are_above_one_where_speculation_is_better() -> None:
    ratios = summarize("all", [measurement(PLAIN, FASTER)]).ratios
    assert ratios.tokens_per_s is not None
    assert ratios.decode is not None
    assert ratios.ttft is not None
    assert ratios.e2e is not None
    assert ratios.tokens_per_s.value == pytest.approx(5.0 / 3.5)
    assert ratios.decode.value == pytest.approx(4.0 / 2.5)
    assert ratios.ttft.value == pytest.approx(1.0)
    assert ratios.e2e.value == pytest.approx(5.0 / 3.5)


def test_samplings_of_one_prompt_are_one_unit() -> None:
    measurements = [
        measurement(unit=unit, sampling=sampling)
        for unit in range(3)
        for sampling in ("greedy", "seeded")
    ]
    summary = summarize("all", measurements)
    assert (summary.num_units, summary.num_prompts) == (3, 3)
    assert summary.ratios.tokens_per_s is not None
    assert summary.ratios.tokens_per_s.num_units == 3


def test_the_control_shows_the_noise() -> None:
    slower = Speed(num_tokens=101, ttft_s=1.0, step_s=0.05)
    summary = summarize("all", [measurement(PLAIN, FASTER, control=slower)])
    assert summary.noise is not None
    assert summary.noise.tokens_per_s is not None
    assert summary.noise.tokens_per_s.value == pytest.approx(5.0 / 6.0)
    assert summarize("all", [measurement(PLAIN, FASTER)]).noise is None


def test_loops_are_counted_and_the_ratio_is_also_given_without_them() -> None:
    fast = Speed(step_s=0.001)
    measurements = [
        measurement(unit=0),
        measurement(on=fast, unit=1, tokens=[1, 2] * 50 + [1]),
    ]
    summary = summarize("all", measurements)
    assert summary.ratios.tokens_per_s is not None
    assert summary.repetition.tokens_per_s_without is not None
    assert (summary.repetition.num_repetitive, summary.repetition.num_outputs) == (1, 2)
    assert summary.ratios.tokens_per_s.value > 1.5
    assert summary.repetition.tokens_per_s_without.value == pytest.approx(1.0)


def test_an_answer_of_one_token_has_no_decode_rate() -> None:
    short = Speed(num_tokens=1, ttft_s=0.5)
    summary = summarize("all", [measurement(short, short)])
    assert summary.ratios.decode is None
    assert summary.modes["off"].decode_step_s is None
    assert summary.ratios.tokens_per_s is not None


def test_parts_come_in_order_of_appearance() -> None:
    measurements = [measurement(unit=i, category=name) for i, name in enumerate("bab")]
    parts = summarize_by(measurements, lambda item: item.category)
    assert list(parts) == ["b", "a"]
    assert parts["b"].num_units == 2
