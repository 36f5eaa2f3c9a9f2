"""What counts as a difference, and what makes a run prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.audit.findings import Divergence, Row, compare, find_vacuous
from slipstream.audit.outcome import Outcome
from slipstream.audit.plan import NO_DRAFTERS, Condition, DrafterSet, Setting

EXPECTED = Outcome((1, 2), (5, 6, 7), "abc", "length")
NGRAM = DrafterSet("ngram", ("ngram",))


def found(actual: Outcome) -> Divergence | None:
    return compare("case", 1, EXPECTED, actual)


def test_what_speculation_did_is_no_difference() -> None:
    assert found(replace(EXPECTED, num_draft_tokens=9, num_cached_tokens=2)) is None


@pytest.mark.parametrize(
    ("tokens", "position", "wanted", "given"),
    [
        ((5, 9, 7), 1, 6, 9),
        ((5, 6), 2, 7, None),
        ((5, 6, 7, 8), 3, None, 8),
        ((), 0, 5, None),
    ],
)
def test_the_first_token_that_differs_is_named(
    tokens: tuple[int, ...], position: int, wanted: int | None, given: int | None
) -> None:
    divergence = found(replace(EXPECTED, token_ids=tokens))
    assert divergence == Divergence("case", 1, "tokens", position, wanted, given)


@pytest.mark.parametrize(
    ("field", "value"), [("text", "ab"), ("finish_reason", "stop"), ("prompt_token_ids", (1,))]
)
def test_equal_tokens_are_not_enough(field: str, value: object) -> None:
    changed = replace(EXPECTED, **{field: value})  # type: ignore[arg-type]  # fields vary
    divergence = found(changed)
    assert divergence is not None
    assert divergence.what == field.removesuffix("_token_ids")
    assert divergence.position == 3


def row(drafters: DrafterSet = NGRAM, condition: Condition | None = None, **counts: int) -> Row:
    numbers = {"num_drafted": 5, "num_accepted": 2, "num_prefix_hits": 16, "num_preemptions": 1}
    setting = Setting("greedy", 8, drafters, condition or Condition(True, False, True))
    return Row(setting=setting, num_prompts=1, num_tokens=9, divergences=(), **(numbers | counts))


def vacuous(*rows: Row, can_preempt: bool = True) -> list[str]:
    return list(find_vacuous(rows, can_preempt=can_preempt))


def test_a_run_in_which_everything_happened_is_no_vacuous_one() -> None:
    assert vacuous(row()) == []


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ({"num_accepted": 0}, "ngram: no draft token was accepted"),
        ({"num_accepted": 5}, "ngram: no draft token was rejected"),
        ({"num_prefix_hits": 0}, "no prefix hit was counted"),
        ({"num_preemptions": 0}, "no preemption was counted"),
    ],
)
def test_whatever_never_happened_is_named(counts: dict[str, int], what: str) -> None:
    assert what in vacuous(row(NGRAM, None, **counts))


def test_each_drafter_set_must_have_drafted_by_itself() -> None:
    idle = row(DrafterSet("suffix", ("suffix",)), num_drafted=0, num_accepted=0)
    assert vacuous(row(), idle) == [
        "suffix: no draft token was accepted",
        "suffix: no draft token was rejected",
    ]


def test_each_condition_must_have_held_by_itself() -> None:
    warm = row(condition=Condition(is_warm=True), num_prefix_hits=0)
    assert vacuous(row(), warm) == ["warm: no prefix hit was counted"]


def test_plain_decoding_alone_proves_nothing_about_speculation() -> None:
    assert vacuous(row(NO_DRAFTERS, num_drafted=0, num_accepted=0)) == ["nothing was drafted"]


def test_a_server_need_not_preempt_since_its_client_cannot_force_it() -> None:
    calm = replace(row(condition=Condition(is_warm=True)), num_preemptions=None)
    assert vacuous(calm, can_preempt=False) == []
