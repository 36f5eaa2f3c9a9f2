"""Order, salts and samplings."""

from __future__ import annotations

from collections import Counter

import pytest

from slipstream.bench.plan import BenchPlan, parse_samplings
from slipstream.errors import ConfigError


@pytest.mark.parametrize("has_control", [False, True])
def test_every_mode_runs_equally_often_in_every_place(has_control: bool) -> None:
    plan = BenchPlan(has_control=has_control)
    places = Counter(
        (place, mode) for turn in range(6) for place, mode in enumerate(plan.order(turn))
    )
    assert set(places.values()) == {6 // len(plan.modes)}


def test_runs_share_no_salt_by_default() -> None:
    plan = BenchPlan(nonce="n")
    salts = {
        plan.salt(mode, sampling, round_index, prompt)
        for mode in ("off", "on", "control")
        for sampling in plan.samplings
        for round_index in range(2)
        for prompt in range(3)
    }
    assert len(salts) == 3 * 2 * 2 * 3


def test_shared_memory_is_shared_within_mode_sampling_and_round_only() -> None:
    plan = BenchPlan(is_memory_shared=True)
    assert plan.salt("on", "greedy", 0, 1) == plan.salt("on", "greedy", 0, 2)
    assert plan.salt("on", "greedy", 0, 1) != plan.salt("off", "greedy", 0, 1)
    assert plan.salt("on", "greedy", 0, 1) != plan.salt("on", "greedy", 1, 1)
    assert plan.salt("on", "greedy", 0, 1) != plan.salt("on", "seeded", 0, 1)


def test_two_benchmarks_share_no_salt() -> None:
    assert BenchPlan(nonce="a").salt("on", "greedy", 0, 0) != BenchPlan(nonce="b").salt(
        "on", "greedy", 0, 0
    )


def test_each_prompt_draws_with_its_own_seed() -> None:
    plan = BenchPlan(seed=10, max_tokens=7)
    params = plan.params("seeded", 3)
    assert (params.seed, params.max_tokens, params.temperature) == (13, 7, 0.7)


def test_samplings_are_names_or_temperatures() -> None:
    assert parse_samplings("greedy, t1.0,greedy") == ("greedy", "t1.0")
    assert BenchPlan().params("t1.0", 0).temperature == 1.0


@pytest.mark.parametrize("text", ["", "warm", "t", "tnan", "t-1", "1.0"])
def test_other_samplings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--sampling"):
        parse_samplings(text)
