"""What is run: names, their order, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from slipstream.audit.plan import (
    CONFIGURED_DRAFTERS,
    NO_DRAFTERS,
    AuditPlan,
    Condition,
    DrafterSet,
    parse_concurrencies,
    parse_conditions,
    parse_drafter_sets,
    parse_samplings,
)
from slipstream.errors import ConfigError

KNOWN = ("ngram", "suffix", "draft_model")


def plan(**fields: object) -> AuditPlan:
    defaults: dict[str, object] = {
        "samplings": ("greedy", "t0.7"),
        "concurrencies": (1, 8),
        "drafter_sets": (NO_DRAFTERS, DrafterSet("ngram", ("ngram",)), CONFIGURED_DRAFTERS),
        "conditions": (Condition(is_chunked=True), Condition(), Condition(is_preempted=True)),
        "max_tokens": 5,
    }
    return AuditPlan(**(defaults | fields))  # type: ignore[arg-type]  # fields vary by test


def test_seeded_stands_for_every_sampling_with_a_temperature() -> None:
    assert parse_samplings("greedy, seeded") == ("greedy", "t0.7", "t1.0")
    assert parse_samplings("t1.0,seeded") == ("t1.0", "t0.7")


def test_conditions_can_hold_at_once() -> None:
    assert parse_conditions("cold,preempted+warm") == (
        Condition(),
        Condition(is_warm=True, is_preempted=True),
    )
    assert Condition(True, False, True).label == "warm+preempted"


def test_drafter_sets_are_names_joined_by_plus_and_merge_is_all() -> None:
    sets = parse_drafter_sets("off,configured,ngram,ngram+suffix,merge", KNOWN)
    assert sets[:2] == (NO_DRAFTERS, CONFIGURED_DRAFTERS)
    assert [item.names for item in sets[2:]] == [("ngram",), ("ngram", "suffix"), KNOWN]


def test_merge_on_a_server_is_whatever_it_has() -> None:
    assert parse_drafter_sets("merge", None) == (CONFIGURED_DRAFTERS,)
    assert parse_drafter_sets("mine", None) == (DrafterSet("mine", ("mine",)),)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_samplings, "hot", "greedy, t0.7, t1.0, biased, seeded"),
        (parse_samplings, " , ", "empty"),
        (parse_concurrencies, "0", "1 to 4096"),
        (parse_concurrencies, "two", "1 to 4096"),
        (parse_conditions, "cold+warm", "joined by"),
        (lambda text: parse_drafter_sets(text, KNOWN), "eagle", "ngram, suffix, draft_model"),
        (lambda text: parse_drafter_sets(text, ()), "merge", "none"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(
    parse: object, text: str, message: str
) -> None:
    assert callable(parse)
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_every_combination_is_run_but_preemption_alone_is_impossible() -> None:
    settings = list(plan().settings())
    # per sampling and drafter set: 2 conditions at 2 concurrencies, and preemption at 8 only
    assert len(settings) == len(set(settings)) == 2 * 3 * (2 * 2 + 1)
    assert all(item.concurrency == 8 for item in settings if item.condition.is_preempted)


def test_the_order_needs_each_kind_of_engine_once() -> None:
    kinds = [
        (item.drafters.is_configured, item.condition.is_chunked)
        for item in plan().settings()
        if not item.drafters.is_off
    ]
    changes = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert len(changes) == len(set(changes)) == 4


def test_each_case_has_a_seed_of_its_own_that_is_the_same_everywhere() -> None:
    one, other = plan(seed=40).params("t0.7", 0), plan(seed=40).params("t0.7", 1)
    assert (one.seed, other.seed) == (40, 41)
    assert one.max_tokens == 5
    assert one.temperature == 0.7
    assert one == plan(seed=40).params("t0.7", 0)
