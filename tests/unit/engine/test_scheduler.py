"""What a step computes: who gets rows, who drafts, who gives way for memory."""

from __future__ import annotations

import pytest

from slipstream.engine.queue import RequestQueue
from slipstream.engine.request import Phase, Request
from slipstream.engine.scheduler import PROMPT_LOGPROB_CHUNK, Scheduler, SchedulerLimits, StepPlan
from slipstream.kv.cache import KvCache
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.control import NO_DRAFT, DraftLimit
from tests.support.requests import make_request, make_requests

PAGE_SIZE = 4


class Bench:
    """A scheduler with a way to pretend that its plans were carried out."""

    def __init__(
        self,
        *,
        num_pages: int = 256,
        max_num_requests: int = 16,
        max_step_tokens: int = 64,
        high_at: float = 0.9,
        draft: DraftLimit = NO_DRAFT,
    ) -> None:
        self.kv = KvCache(num_pages, PAGE_SIZE)
        self.queue = RequestQueue(max_len=1000, starvation_s=5.0)
        limits = SchedulerLimits(max_num_requests, max_step_tokens, high_at)
        self.scheduler = Scheduler(limits, self.kv, self.queue)
        self.draft = draft

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.queue.add([request])

    def plan(self, now_s: float = 0.0) -> StepPlan:
        return self.scheduler.plan(now_s, lambda request: self.draft)

    def carry_out(self, plan: StepPlan) -> StepPlan:
        """Commit the known rows; every request whose last row was computed draws token 50."""
        for item in plan.items:
            lease = item.request.lease
            assert lease is not None
            lease.commit(item.num_tokens)
            lease.rollback()
            if item.is_last_chunk:
                item.request.group.is_prompt_cached = True
                item.request.accept_token(50)
        self.kv.check_integrity()
        return plan

    def step(self) -> StepPlan:
        return self.carry_out(self.plan())


def rows_of(plan: StepPlan) -> int:
    return sum(item.num_tokens + item.draft.max_draft_nodes for item in plan.items)


def names(requests: tuple[Request, ...]) -> list[str]:
    return [request.submission_id for request in requests]


def long_prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple(10 + (start + token) % 280 for token in range(length))


def test_a_waiting_request_is_admitted_and_its_prompt_computed() -> None:
    bench = Bench()
    bench.add(make_request(name="a"))
    plan = bench.plan()
    assert names(plan.admitted) == ["a"]
    assert [(item.num_tokens, item.is_last_chunk) for item in plan.items] == [(3, True)]
    assert plan.items[0].request.phase is Phase.RUNNING


def test_a_long_prompt_is_computed_in_chunks_of_the_row_budget() -> None:
    bench = Bench(max_step_tokens=16)
    bench.add(make_request(long_prompt(40)))
    chunks = [bench.step().items[0] for _ in range(3)]
    assert [item.num_tokens for item in chunks] == [16, 16, 8]
    assert [item.is_last_chunk for item in chunks] == [False, False, True]


def test_decoding_requests_come_before_prompt_chunks() -> None:
    bench = Bench(max_step_tokens=8)
    bench.add(make_request(name="decoding"))
    bench.step()
    bench.add(make_request(long_prompt(40), name="prefill"))
    plan = bench.step()
    assert [item.num_tokens for item in plan.items] == [1, 7]


def test_no_step_exceeds_its_row_budget() -> None:
    bench = Bench(max_step_tokens=20, draft=DraftLimit(8, 16))
    for number in range(6):
        bench.add(make_request(long_prompt(11, number), name=f"r{number}"))
    for _ in range(20):
        assert rows_of(bench.step()) <= 20


def test_no_step_exceeds_the_number_of_running_requests() -> None:
    bench = Bench(max_num_requests=3)
    for number in range(5):
        bench.add(make_request(name=f"r{number}"))
    assert len(bench.step().items) == 3
    assert len(bench.scheduler.running) == 3
    assert len(bench.queue) == 2


@pytest.mark.parametrize("num_running", [2, 4, 7, 16])
def test_drafts_of_senior_requests_leave_every_other_request_its_row(num_running: int) -> None:
    bench = Bench(max_step_tokens=20, draft=DraftLimit(8, 16))
    for number in range(num_running):
        bench.add(make_request(name=f"r{number}", arrival_s=float(number)))
    for _ in range(10):
        bench.step()
    for _ in range(10):
        plan = bench.step()
        assert len(plan.items) == num_running


def test_drafts_leave_half_of_the_rows_to_prompts_that_are_being_computed() -> None:
    bench = Bench(max_step_tokens=20, draft=DraftLimit(8, 16))
    bench.add(make_request(name="decoding"))
    bench.step()
    bench.add(make_request(long_prompt(60), name="prefill"))
    decoding, prefill = bench.step().items
    assert decoding.draft.max_draft_nodes <= 10
    assert prefill.num_tokens >= 9


def test_drafts_leave_nothing_to_requests_that_cannot_be_admitted() -> None:
    """With a queue in front of a full engine there is no prompt to leave rows to."""
    bench = Bench(max_num_requests=2, draft=DraftLimit(8, 30))
    bench.add(*(make_request(name=name) for name in "abcde"))
    bench.step()
    plan = bench.plan()
    assert len(bench.queue) == 3
    assert [item.draft.max_draft_nodes for item in plan.items] == [30, 30]


@pytest.mark.parametrize("num_left", range(1, 6))
def test_no_draft_is_longer_than_the_output_that_may_follow(num_left: int) -> None:
    bench = Bench(draft=DraftLimit(8, 16))
    params = SamplingParams(temperature=0.0, max_tokens=1 + num_left)
    bench.add(make_request(params=params))
    bench.step()
    (item,) = bench.plan().items
    assert item.draft.max_draft_len == num_left - 1


def test_a_request_without_drafts_is_planned_with_one_row() -> None:
    bench = Bench(draft=NO_DRAFT)
    bench.add(make_request())
    bench.step()
    (item,) = bench.plan().items
    assert item.num_tokens == 1
    assert item.draft is NO_DRAFT


def test_rows_of_drafts_are_backed_by_pages() -> None:
    bench = Bench(draft=DraftLimit(4, 9))
    bench.add(make_request())
    bench.step()
    (item,) = bench.plan().items
    assert item.request.lease is not None
    assert item.request.lease.num_reserved == 1 + item.draft.max_draft_nodes


def test_a_draft_without_pages_shrinks_before_anybody_is_preempted() -> None:
    bench = Bench(num_pages=3, high_at=1.0, draft=DraftLimit(8, 16))
    bench.add(make_request(long_prompt(8)))
    bench.step()
    plan = bench.step()
    assert not plan.preempted
    assert plan.items[0].draft is NO_DRAFT


def test_nothing_is_drafted_above_the_watermark() -> None:
    bench = Bench(num_pages=10, high_at=0.5, draft=DraftLimit(2, 2))
    bench.add(make_request(long_prompt(18)))
    bench.step()
    assert bench.step().items[0].draft is NO_DRAFT


def test_nobody_is_admitted_above_the_watermark() -> None:
    bench = Bench(num_pages=10, high_at=0.5)
    bench.add(make_request(long_prompt(18), name="large"))
    bench.step()
    bench.add(make_request(name="small"))
    assert not bench.step().admitted
    bench.scheduler.finish(bench.scheduler.running[0])
    assert names(bench.step().admitted) == ["small"]


def test_a_prompt_waits_until_the_whole_of_it_fits() -> None:
    bench = Bench(num_pages=8, high_at=1.0)
    bench.add(make_request(long_prompt(14), name="first"))
    bench.step()
    bench.add(make_request(long_prompt(16, 100), name="second"))
    assert not bench.step().admitted


def test_a_request_that_needs_the_whole_cache_runs_alone() -> None:
    bench = Bench(num_pages=4, high_at=0.5)
    bench.add(make_request(long_prompt(15)))
    assert bench.step().items[0].num_tokens == 15


def fill(bench: Bench, priorities: tuple[int, ...]) -> None:
    """Run requests of 7 tokens until each has filled two pages and needs a third."""
    for number, priority in enumerate(priorities):
        prompt = long_prompt(7, 20 * number)
        bench.add(
            make_request(prompt, name=f"r{number}", arrival_s=float(number), priority=priority)
        )
    bench.step()
    bench.step()


def test_the_latest_request_is_preempted_when_pages_run_out() -> None:
    bench = Bench(num_pages=6, high_at=1.0)
    fill(bench, (0, 0, 0))
    plan = bench.step()
    assert names(plan.preempted) == ["r2"]
    assert [item.request.submission_id for item in plan.items] == ["r0", "r1"]
    (waiting,) = bench.queue
    assert waiting.phase is Phase.WAITING
    assert waiting.num_preemptions == 1
    assert waiting.lease is None


def test_the_lowest_priority_is_preempted_first() -> None:
    bench = Bench(num_pages=6, high_at=1.0)
    fill(bench, (-1, 0, 0))
    assert names(bench.step().preempted) == ["r0"]


def test_a_preempted_request_finds_its_own_pages_again() -> None:
    bench = Bench(num_pages=8, high_at=1.0)
    fill(bench, (0, 0, 0))
    assert names(bench.step().preempted) == ["r2"]
    for request in list(bench.scheduler.running):
        bench.scheduler.finish(request)
    plan = bench.plan()
    assert names(plan.admitted) == ["r2"]
    (item,) = plan.items
    assert len(item.request.tokens) == 9
    assert item.num_tokens == 1  # both of its full pages were still there


def test_prompt_logprobs_take_no_prefix_from_the_cache_and_small_chunks() -> None:
    bench = Bench(max_step_tokens=200)
    prompt = long_prompt(PROMPT_LOGPROB_CHUNK + 30)
    bench.add(make_request(prompt, name="warm"))
    bench.step()
    bench.scheduler.finish(bench.scheduler.running[0])
    bench.add(make_request(prompt, SamplingParams(temperature=0.0, prompt_logprobs=True)))
    (item,) = bench.step().items
    assert item.num_tokens == PROMPT_LOGPROB_CHUNK
    assert item.request.lease is not None
    assert item.request.lease.num_cached == 0


def test_further_choices_take_the_prompt_from_the_first() -> None:
    bench = Bench()
    bench.add(*make_requests(long_prompt(12), n=2))
    first = bench.plan()
    assert [item.request.index for item in first.items] == [0]
    lease = first.items[0].request.lease
    assert lease is not None
    lease.commit(12)
    first.items[0].request.accept_token(50)
    lease.publish(first.items[0].request.tokens[:12])
    first.items[0].request.group.is_prompt_cached = True
    second = bench.plan()
    (item,) = [item for item in second.items if item.request.index == 1]
    assert item.num_tokens == 4  # three pages are cached, the last token's page is not taken


def test_finishing_gives_everything_back_wherever_a_request_is() -> None:
    bench = Bench()
    running, waiting = make_request(name="running"), make_request(name="waiting")
    bench.add(running)
    bench.step()
    bench.add(waiting)
    for request in (running, waiting, running):
        bench.scheduler.finish(request)
        assert request.phase is Phase.FINISHED
    assert not len(bench.queue)
    assert not bench.scheduler.running
    assert bench.kv.usage().num_leased == 0


def test_an_empty_scheduler_plans_nothing() -> None:
    plan = Bench().plan()
    assert plan == StepPlan((), (), ())
