"""Which requests run in the next step, and with how many rows each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.engine.queue import RequestQueue
from slipstream.engine.request import Phase, Request
from slipstream.kv.cache import KvCache, OutOfPages
from slipstream.speculation.control import NO_DRAFT, DraftLimit

PROMPT_LOGPROB_CHUNK = 64


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One request's share of a step.

    Attributes:
        num_tokens: Known tokens to compute, from the first uncomputed one on.
        draft: Most that may be drafted behind them; room for it is reserved in the lease.
        is_last_chunk: The pass reaches the request's last token, so the next one is sampled.
    """

    request: Request
    num_tokens: int
    draft: DraftLimit
    is_last_chunk: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the next pass computes, and who had to give way for it."""

    items: tuple[PlanItem, ...]
    preempted: tuple[Request, ...]
    admitted: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step.

    Attributes:
        max_num_requests: Most running requests.
        max_step_tokens: Most rows of a pass.
        high_at: Share of leased pages above which nothing is drafted and nobody admitted.
    """

    max_num_requests: int
    max_step_tokens: int
    high_at: float


class Scheduler:
    """Continuous batching with chunked prefill; owner of the set of running requests.

    Decoding requests come first, one row each; what is left of the row budget goes to drafts and
    prompt chunks. When pages run out, drafts shrink first, then the least senior request is
    preempted: its pages stay in the prefix cache while they can, and it is computed anew later.

    Args:
        before_close: Is told of a request whose lease is about to be closed, its pages shared.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KvCache,
        queue: RequestQueue,
        before_close: Callable[[Request], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._kv = kv
        self._queue = queue
        self._before_close = before_close
        self.running: list[Request] = []

    def plan(self, now_s: float, draft_limit: Callable[[Request], DraftLimit]) -> StepPlan:
        """Choose and reserve; every item's rows are then backed by pages.

        Args:
            draft_limit: What the controller allows a decoding request to draft.
        """
        step = _Step(self._limits.max_step_tokens)
        self.running.sort(key=_seniority)
        is_tight = self._kv.usage().pressure >= self._limits.high_at
        pending = list(self.running)
        decoding = [item for item in pending if item.num_remaining == 1]
        has_prefill = len(decoding) < len(pending) or self._admissible(now_s) is not None
        rows_to_spare = max(step.rows_left - len(decoding), 0)
        step.rows_for_drafts = 0 if is_tight else rows_to_spare // (2 if has_prefill else 1)
        for request in decoding:
            if request in self.running and step.rows_left:
                self._plan_decode(step, request, draft_limit(request))
        for request in [item for item in pending if item.num_remaining > 1]:
            if request in self.running:
                self._plan_chunk(step, request)
        self._admit(step, now_s)
        return StepPlan(tuple(step.items), tuple(step.preempted), tuple(step.admitted))

    def finish(self, request: Request, *, keep_prefix: bool = True) -> None:
        """Give back all that a request holds, wherever it is in its life."""
        self._queue.remove(request)
        if request in self.running:
            self.running.remove(request)
        self._close(request, keep_prefix=keep_prefix)
        request.phase = Phase.FINISHED

    def _plan_decode(self, step: _Step, request: Request, draft: DraftLimit) -> None:
        room = request.max_output - request.num_output - 1
        num_nodes = min(draft.max_draft_nodes, step.rows_for_drafts, step.rows_left - 1)
        draft_len = min(draft.max_draft_len, room, num_nodes)
        limit = DraftLimit(draft_len, num_nodes) if draft_len > 0 else NO_DRAFT
        if limit is not NO_DRAFT and not self._reserve(request, 1 + num_nodes):
            limit = NO_DRAFT
        if limit is NO_DRAFT and not self._reserve_or_preempt(step, request, 1):
            return
        step.add(PlanItem(request, 1, limit, is_last_chunk=True))

    def _plan_chunk(self, step: _Step, request: Request) -> None:
        num_tokens = min(request.num_remaining, step.rows_left, _longest_chunk(request))
        if num_tokens <= 0 or not self._reserve_or_preempt(step, request, num_tokens):
            return
        is_last = num_tokens == request.num_remaining
        step.add(PlanItem(request, num_tokens, NO_DRAFT, is_last_chunk=is_last))

    def _admit(self, step: _Step, now_s: float) -> None:
        while step.rows_left and (request := self._admissible(now_s)) is not None:
            needs_all_rows = request.params.prompt_logprobs and request.index == 0
            request.lease = self._kv.open(
                request.request_id, request.tokens, request.salt, use_prefix=not needs_all_rows
            )
            self._queue.remove(request)
            self.running.append(request)
            request.phase = Phase.RUNNING
            step.admitted.append(request)
            self._plan_chunk(step, request)

    def _admissible(self, now_s: float) -> Request | None:
        """The next request of the queue, if nothing keeps it there."""
        if len(self.running) >= self._limits.max_num_requests:
            return None
        request = self._queue.best(now_s)
        if request is None or not self._has_room(request) or not self._kv.can_open():
            return None
        return request

    def _has_room(self, request: Request) -> bool:
        """Whether the whole prompt fits beside the others without reaching the watermark."""
        if not self.running:
            return True
        usage = self._kv.usage()
        needed = len(request.tokens) + 1
        return usage.pressure < self._limits.high_at and self._kv.can_reserve(needed)

    def _reserve(self, request: Request, count: int) -> bool:
        assert request.lease is not None, "a running request holds a lease"
        try:
            request.lease.reserve(count)
        except OutOfPages:
            return False
        return True

    def _reserve_or_preempt(self, step: _Step, request: Request, count: int) -> bool:
        """Reserve, preempting the least senior requests until it fits; False if it is `request`."""
        while not self._reserve(request, count):
            victim = max(self.running, key=_seniority)
            step.drop(victim)
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._close(request, keep_prefix=True)
        request.phase = Phase.WAITING
        request.num_preemptions += 1
        self._queue.put_back(request)

    def _close(self, request: Request, *, keep_prefix: bool) -> None:
        if request.lease is None:
            return
        self._before_close(request)
        lease, request.lease = request.lease, None
        lease.close(request.tokens[: lease.num_tokens] if keep_prefix else None)


class _Step:
    """A plan in the making."""

    def __init__(self, max_rows: int) -> None:
        self.rows_left = max_rows
        self.rows_for_drafts = 0
        self.items: list[PlanItem] = []
        self.preempted: list[Request] = []
        self.admitted: list[Request] = []

    def add(self, item: PlanItem) -> None:
        self.items.append(item)
        self.rows_left -= item.num_tokens + item.draft.max_draft_nodes
        self.rows_for_drafts -= item.draft.max_draft_nodes

    def drop(self, request: Request) -> None:
        """Take a preempted request out of the plan again."""
        for item in [item for item in self.items if item.request is request]:
            self.items.remove(item)
            self.rows_left += item.num_tokens + item.draft.max_draft_nodes


def _seniority(request: Request) -> tuple[int, float, int]:
    """Ascending: the first is preempted last."""
    return (-request.group.submit.priority, request.group.arrival_s, request.index)


def _longest_chunk(request: Request) -> int:
    """Prompt log-probabilities need a row of logits per token: keep such passes small."""
    return PROMPT_LOGPROB_CHUNK if request.params.prompt_logprobs else request.num_remaining
