"""The interleaved run, over a target that only takes notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.measure import measure, num_measurements
from slipstream.bench.plan import BenchPlan
from slipstream.bench.prompts import Prompt
from slipstream.bench.results import Answer, GroupRun
from slipstream.bench.target import Job
from tests.unit.bench.synthetic import Speed, turn


@dataclass
class NotingTarget:
    """Answers at once; refuses some prompts, and is interrupted at a run."""

    refused: tuple[str, ...] = ()
    interrupted_at: int | None = None
    calls: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {}

    def run(self, jobs: Sequence[Job], *, is_drafting: bool) -> GroupRun:
        if len(self.calls) == self.interrupted_at:
            raise KeyboardInterrupt
        self.calls.append((tuple(job.prompt.prompt_id for job in jobs), is_drafting))
        self.jobs.extend(jobs)
        return GroupRun(
            tuple(
                Answer((), "too long")
                if job.prompt.prompt_id in self.refused
                else Answer((turn(Speed()),))
                for job in jobs
            )
        )


def prompts(*names: str) -> list[Prompt]:
    return [Prompt(name, name[0], text="x") for name in names]


GREEDY = BenchPlan(samplings=("greedy",))
NUM_WARM_UPS = 2


def test_both_modes_of_a_prompt_run_before_the_next_and_the_order_alternates() -> None:
    target = NotingTarget()
    measured = measure(target, GREEDY, prompts("a1", "a2", "b1"))
    assert target.calls[NUM_WARM_UPS:] == [
        (("a1",), False),
        (("a1",), True),
        (("a2",), True),
        (("a2",), False),
        (("b1",), False),
        (("b1",), True),
    ]
    assert [item.order for item in measured.measurements] == [
        ("off", "on"),
        ("on", "off"),
        ("off", "on"),
    ]


def test_the_control_is_a_third_run_without_drafts() -> None:
    target = NotingTarget()
    plan = BenchPlan(samplings=("greedy",), has_control=True)
    measured = measure(target, plan, prompts("a1"))
    assert [is_drafting for _, is_drafting in target.calls[NUM_WARM_UPS:]] == [False, True, False]
    assert set(measured.measurements[0].runs) == {"off", "on", "control"}


def test_all_modes_of_a_prompt_draw_with_the_same_seed_and_share_no_salt() -> None:
    target = NotingTarget()
    measure(target, GREEDY, prompts("a1"))
    off, on = target.jobs[NUM_WARM_UPS:]
    assert off.params == on.params
    assert off.salt != on.salt


def test_prompts_of_one_category_run_together() -> None:
    target = NotingTarget()
    plan = BenchPlan(samplings=("greedy",), concurrency=2)
    measure(target, plan, prompts("a1", "b1", "a2"))
    assert {names for names, _ in target.calls[NUM_WARM_UPS:]} == {("a1", "a2"), ("b1",)}


def test_a_refused_prompt_is_left_out_of_all_modes_and_not_tried_again() -> None:
    target = NotingTarget(refused=("a2",))
    plan = BenchPlan(samplings=("greedy", "seeded"), concurrency=2)
    measured = measure(target, plan, prompts("a1", "a2"))
    assert measured.refusals == {"a2": "too long"}
    assert [item.prompt_ids for item in measured.measurements] == [("a1",), ("a1",)]
    assert all(len(run.answers) == 1 for run in measured.measurements[0].runs.values())
    assert target.calls[-1][0] == ("a1",)


def test_an_interrupt_keeps_what_was_measured() -> None:
    target = NotingTarget(interrupted_at=NUM_WARM_UPS + 3)
    measured = measure(target, GREEDY, prompts("a1", "a2", "a3"))
    assert not measured.is_complete
    assert [item.prompt_ids for item in measured.measurements] == [("a1",)]


def test_progress_is_told_once_for_each_group_sampling_and_round() -> None:
    told: list[None] = []
    plan = BenchPlan(concurrency=2, rounds=3)
    chosen = prompts("a1", "a2", "a3", "b1")
    measure(NotingTarget(), plan, chosen, lambda: told.append(None))
    assert len(told) == num_measurements(plan, chosen) == 3 * 2 * 3
