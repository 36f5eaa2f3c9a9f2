"""How an audit asks: a plain reference, then everything against it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream.audit.findings import Report
from slipstream.audit.law import MAX_DISTANCE, Draw, law_distance
from slipstream.audit.lossless import LosslessAudit
from slipstream.audit.outcome import Job, Outcome
from slipstream.audit.plan import NO_DRAFTERS, AuditPlan, Condition, DrafterSet, Setting
from slipstream.bench.prompts import Prompt
from slipstream.errors import SlipstreamError
from tests.unit.audit.fake_target import FakeTarget, NoProgress

NGRAM = DrafterSet("ngram", ("ngram",))
CONDITIONS = (Condition(), Condition(is_warm=True), Condition(is_preempted=True))
PLAN = AuditPlan(("greedy", "t1.0"), (1, 4), (NGRAM,), CONDITIONS, max_tokens=9)


def chat(name: str, *contents: str) -> Prompt:
    messages = tuple({"role": "user", "content": content} for content in contents)
    return Prompt(name, "chat", messages=messages)


PROMPTS = (chat("one", "a"), chat("two", "b", "c"), Prompt("raw", "text", text="once"))


def run(
    target: FakeTarget,
    prompts: tuple[Prompt, ...] = PROMPTS,
    progress: NoProgress | None = None,
    plan: AuditPlan = PLAN,
) -> Report:
    audit = LosslessAudit(target, plan, prompts, nonce="n", progress=progress or NoProgress())
    return audit.run()


def test_the_reference_is_each_turn_alone_cold_and_without_drafts() -> None:
    target = FakeTarget()
    run(target)
    reference = target.runs[: 2 * 4]
    assert all(len(jobs) == 1 for _, jobs in reference)
    assert {setting.sampling for setting, _ in reference} == {"greedy", "t1.0"}
    for setting, _ in reference:
        assert (setting.concurrency, setting.drafters) == (1, NO_DRAFTERS)
        assert setting.condition == Condition()


def test_the_answer_to_a_turn_is_part_of_the_next_one() -> None:
    target = FakeTarget()
    run(target)
    cases = [jobs[0].case for _, jobs in target.runs[:4]]
    assert [case.case_id for case in cases] == ["one", "two", "two turn 2", "raw"]
    assert cases[2].messages == (
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "answer 2"},
        {"role": "user", "content": "c"},
    )
    assert cases[3].text == "once"


def test_every_setting_asks_for_the_reference_again() -> None:
    target = FakeTarget()
    progress = NoProgress()
    report = run(target, progress=progress)
    greedy = [jobs[0] for setting, jobs in target.runs[:8] if setting.sampling == "greedy"]
    for setting, jobs in target.runs[8:]:
        if setting.sampling == "greedy":
            assert [(job.case, job.params) for job in jobs] == [
                (job.case, job.params) for job in greedy
            ]
    assert len(report.rows) == 2 * (2 + 2 + 1)
    assert report.num_divergences == 0
    assert report.vacuous == ()
    assert progress.num_done == progress.num_jobs


def test_only_a_warm_prefix_is_shared() -> None:
    target = FakeTarget()
    run(target)
    salts: list[str] = []
    for setting, jobs in target.runs:
        own = {job.salt for job in jobs}
        assert len(own) == (1 if setting.condition.is_warm else len(jobs))
        salts += own
    num_warm = sum(setting.condition.is_warm for setting, _ in target.runs)
    assert len(salts) - len(set(salts)) == num_warm / 2


def test_rows_count_what_happened_in_all_waves() -> None:
    report = run(FakeTarget())
    warm = next(row for row in report.rows if row.setting.condition.is_warm)
    assert (warm.num_prompts, warm.num_tokens) == (8, 24)
    assert (warm.num_drafted, warm.num_accepted, warm.num_rejected) == (32, 16, 16)
    assert warm.num_prefix_hits == 8 * 16


def spoil_drafts(setting: Setting, job: Job, outcome: Outcome) -> Outcome:
    if setting.drafters.is_off or not job.case.case_id.startswith("two"):
        return outcome
    return replace(outcome, token_ids=(job.params.seed, 9, 9))


def test_a_spoilt_answer_is_found_and_the_first_of_a_row_is_looked_into() -> None:
    target = FakeTarget(change=spoil_drafts)
    report = run(target)
    for row in report.rows:
        first, *others = row.divergences
        assert first.case_id == "two"
        assert (first.position, first.expected, first.actual) == (1, 2, 9)
        assert first.top_two is not None
        assert all(item.top_two is None for item in others)
        assert len(row.divergences) == 2 * row.setting.condition.num_waves
    # the prompt and the tokens up to the one that differs
    assert set(target.asked) == {(1, 1, 2)}


def test_a_prompt_that_the_model_refuses_is_left_out_and_named() -> None:
    report = run(FakeTarget(), (PROMPTS[0], chat("bad", "refuse")))
    assert report.refused == {"bad": "too long"}
    assert {row.num_prompts for row in report.rows} == {1, 2}


def test_an_audit_without_any_prompt_is_an_error() -> None:
    with pytest.raises(SlipstreamError, match="too long"):
        run(FakeTarget(), (chat("bad", "refuse"),))


def test_all_numerics_are_named() -> None:
    def move(setting: Setting, job: Job, outcome: Outcome) -> Outcome:
        return outcome if setting.drafters.is_off else replace(outcome, fingerprint="fp_2")

    assert run(FakeTarget(change=move)).fingerprints == ("fp_1", "fp_2")


def drawn(setting: Setting, job: Job, outcome: Outcome, share: float) -> Outcome:
    """Tokens of which `share` are the likeliest one, whose probability is a half."""
    if not job.params.logprobs:
        return outcome
    rng = np.random.default_rng(job.params.seed)
    places = [rng.choice([0, 1, 2], p=[share, 0.2, 0.8 - share]) for _ in range(200)]
    return replace(
        outcome,
        token_ids=tuple(rng.integers(0, 9, 200).tolist()),
        draws=tuple(Draw(None if place == 2 else int(place), (0.5, 0.2)) for place in places),
    )


def test_where_only_the_law_is_kept_sampled_tokens_are_counted_and_not_compared() -> None:
    target = FakeTarget(
        change=lambda setting, job, outcome: drawn(setting, job, outcome, 0.5),
        verification="rejection",
    )
    report = run(target, plan=replace(PLAN, drafter_sets=(NGRAM, NO_DRAFTERS)))
    assert report.num_divergences == 0
    for row in report.rows:
        is_counted = row.setting.sampling == "t1.0" and not row.setting.drafters.is_off
        assert (row.law_distance is not None) == is_counted
        if row.law_distance is not None:
            assert 0.0 < row.law_distance < MAX_DISTANCE
    for setting, jobs in target.runs:
        is_counted = setting.sampling == "t1.0" and not setting.drafters.is_off
        assert {job.params.top_logprobs > 0 for job in jobs} == {is_counted}
        assert {job.params.ignore_eos for job in jobs} == {is_counted}
    warm = [
        {job.params.seed for job in jobs}
        for setting, jobs in target.runs
        if setting.condition.is_warm and jobs[0].params.logprobs
    ]
    assert not warm[0] & warm[1]


def test_tokens_that_do_not_follow_their_law_are_a_divergence() -> None:
    def bent(setting: Setting, job: Job, outcome: Outcome) -> Outcome:
        return drawn(setting, job, outcome, 0.6 if setting.drafters == NGRAM else 0.5)

    report = run(FakeTarget(change=bent, verification="rejection"))
    counted = [row for row in report.rows if row.law_distance is not None]
    assert len(counted) == len(report.rows) / 2
    for row in counted:
        assert row.law_distance is not None
        assert row.law_distance > MAX_DISTANCE
        assert [item.what for item in row.divergences] == ["law"]
    assert report.num_divergences == len(counted)


def test_a_law_without_enough_tokens_says_nothing() -> None:
    assert law_distance([]) == 0.0
    assert law_distance([Draw(0, (0.9,))] * 9) == 0.0
    assert law_distance([Draw(0, (1.0,))] * 900) == 0.0
    assert law_distance([Draw(0, (0.5, 0.5))] * 100) == pytest.approx(10.0)
