"""The engine: takes requests, runs steps, tells what happened. One thread drives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.engine.admission import RequestChecker
from slipstream.engine.messages import (
    EngineInfo,
    Event,
    Failed,
    PromptDone,
    Submit,
    TokenLogprob,
    failure,
)
from slipstream.engine.observer import EngineObserver
from slipstream.engine.queue import RequestQueue
from slipstream.engine.request import Group, Request
from slipstream.engine.step import Commit, Stages, StepReport, Target, draft_bounds, step
from slipstream.engine.vocabulary import EngineVocabulary
from slipstream.errors import InvalidRequestError, RequestError, SlipstreamError
from slipstream.kv.cache import KvCache
from slipstream.sampling.noise import derive
from slipstream.tokenization.tokenizer import Tokenizer


class Engine:
    """Owner of all live requests; `step` moves them forward.

    Args:
        stages: The parts that a step passes through.
        caches: `target` is the scheduler's own; drafters' caches go by their names.
        queue: The scheduler's queue.
        tokenizer: Of the target.
        checker: Refuses requests that can never run.
        observer: Learns of everything that happens, for the metrics.
        info: What the engine says of itself.
    Attributes:
        last_report: What the last step did; None before the first.
    """

    def __init__(
        self,
        stages: Stages,
        caches: Mapping[str, KvCache],
        queue: RequestQueue,
        *,
        tokenizer: Tokenizer,
        checker: RequestChecker,
        observer: EngineObserver,
        info: EngineInfo,
    ) -> None:
        self.info = info
        self.observer = observer
        self.kv = caches["target"]
        self._caches = dict(caches)
        self._stages = stages
        self._queue = queue
        self.tokenizer = tokenizer
        self._vocabulary = EngineVocabulary(tokenizer, info.vocab_size)
        self._checker = checker
        self._groups: dict[str, list[Request]] = {}
        self.last_report: StepReport | None = None

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._groups)

    @property
    def target(self) -> Target:
        """What runs the target's passes."""
        return self._stages.runner

    @property
    def num_requests(self) -> int:
        """Live choices, waiting or running."""
        return sum(len(_unfinished(requests)) for requests in self._groups.values())

    def has_room(self, num_choices: int) -> bool:
        """Whether the queue would take a submission of so many choices."""
        return self._queue.has_room(num_choices)

    def submit(self, submit: Submit) -> None:
        """Queue a request.

        Raises:
            RequestError: It can never run (see `RequestChecker`), its id is in use, or the queue
                is full.
        """
        if submit.request_id in self._groups:
            raise InvalidRequestError(f"request id {submit.request_id} is already in use")
        self._checker.check(submit)
        now_s = self._stages.clock.now()
        timeout_s = self._checker.timeout_s(submit)
        group = Group(
            submit=submit,
            arrival_s=now_s,
            deadline_s=None if timeout_s is None else now_s + timeout_s,
            num_unfinished=submit.n,
            bad_words=self._vocabulary.bad_words(submit.params),
        )
        bounds = draft_bounds(self._stages, submit.speculation)
        requests = [
            Request(
                group,
                index,
                seed=derive(submit.params.seed, index),
                tokenizer=self.tokenizer,
                max_len=self.info.max_model_len,
                max_draft_len=bounds.max_draft_len,
            )
            for index in range(submit.n)
        ]
        self._queue.add(requests)
        self._groups[submit.request_id] = requests

    def cancel(self, request_id: str) -> None:
        """Drop a request and free all it holds; unknown ids are ignored."""
        if request_id in self._groups:
            now_s = self._stages.clock.now()
            self.observer.cancelled(_unfinished(self._groups[request_id]), now_s)
            self._drop(request_id)
            self.observer.filled(self.kv.usage())

    def cancel_all(self) -> None:
        """Drop every request."""
        for request_id in list(self._groups):
            self.cancel(request_id)

    def step(self) -> list[Event]:
        """Run one step and return what it made of the requests, in order."""
        events: list[Event] = self._expire()
        if not self._groups:
            self.observer.filled(self.kv.usage())
            return events
        started_s = self._stages.clock.now()
        report = self.last_report = step(self._stages)
        now_s = self._stages.clock.now()
        for request in report.plan.admitted:
            self._note_admission(request, started_s)
        for commit in report.commits:
            if commit.request.submission_id in self._groups:  # no other choice has failed it
                events.extend(self._events_of(commit, now_s))
        self.observer.stepped(report, now_s)
        self.observer.filled(self.kv.usage())
        return events

    def call(self, method: str) -> object:
        """Answer a `Call`.

        Raises:
            SlipstreamError: The method is unknown.
            AssertionError: `check_integrity` found something.
        """
        if method == "metrics":
            self._note_load()
            return self.observer.metrics.exposition().decode()
        if method == "check_integrity":
            self.check_integrity()
            return True
        if method == "reset_prefix_cache":
            return sum(cache.reset_prefix_cache() for cache in self._caches.values())
        raise SlipstreamError(f"the engine has no method {method!r}")

    def check_integrity(self) -> None:
        """Prove that no page is lost or counted twice, and that nothing is held for nobody.

        Raises:
            AssertionError: Names what is wrong.
        """
        live = {request.request_id for group in self._groups.values() for request in group}
        for name, cache in self._caches.items():
            cache.check_integrity()
            orphans = set(cache.leases) - live
            assert not orphans, f"leases of {name} without a request: {sorted(orphans)}"
        waiting = {request.request_id for request in self._queue}
        running = {request.request_id for request in self._stages.scheduler.running}
        assert not waiting & running, f"waiting and running: {sorted(waiting & running)}"
        assert waiting | running <= live, f"forgotten: {sorted((waiting | running) - live)}"
        untold = self._stages.taps.request_ids - running
        assert not untold, f"drafters were not told of rows of {sorted(untold)}"

    def _expire(self) -> list[Event]:
        now_s = self._stages.clock.now()
        events: list[Event] = []
        for request_id, requests in list(self._groups.items()):
            error = self._checker.overdue(requests, now_s)
            if error is not None:
                events.append(self._fail(request_id, error))
        return events

    def _note_load(self) -> None:
        self.observer.loaded(
            {name: cache.usage() for name, cache in self._caches.items()},
            num_waiting=len(self._queue),
            num_running=len(self._stages.scheduler.running),
        )

    def _note_admission(self, request: Request, now_s: float) -> None:
        if request.admitted_s is None:
            request.admitted_s = now_s
            self.observer.admitted(request, now_s)
        if request.index == 0 and request.num_preemptions == 0 and request.lease is not None:
            request.group.num_cached_tokens = request.lease.num_cached

    def _events_of(self, commit: Commit, now_s: float) -> list[Event]:
        request = commit.request
        events: list[Event] = []
        if commit.num_new:
            if request.index == 0 and request.num_output == commit.num_new:
                events.append(self._prompt_done(request))
            if request.first_token_s is None:
                request.first_token_s = now_s
            event = request.take_event(now_s)
            if event is not None:
                events.append(event)
            self.observer.emitted(request, commit, now_s)
            request.last_token_s = now_s
        if commit.fault is not None:
            events.append(self._fail(request.submission_id, commit.fault))
        elif request.is_finished:
            self._finish(request, now_s)
        return events

    def _prompt_done(self, request: Request) -> PromptDone:
        group = request.group
        logprobs: tuple[TokenLogprob, ...] | None = None
        if request.params.prompt_logprobs:
            first = self._stages.logprobs.unconditional(request.tokens[0])
            logprobs = (first, *group.prompt_logprobs)
        return PromptDone(
            request_id=request.submission_id,
            num_prompt_tokens=request.prompt_len,
            num_cached_tokens=group.num_cached_tokens,
            logprobs=logprobs,
        )

    def _finish(self, request: Request, now_s: float) -> None:
        self.observer.finished(request, now_s)
        self._release([request])
        request.group.num_unfinished -= 1
        if request.group.num_unfinished == 0:
            del self._groups[request.submission_id]

    def _fail(self, request_id: str, error: RequestError) -> Failed:
        now_s = self._stages.clock.now()
        self.observer.failed(_unfinished(self._groups[request_id]), error, now_s)
        self._drop(request_id)
        return failure(request_id, error)

    def _drop(self, request_id: str) -> None:
        self._release(self._groups.pop(request_id))

    def _release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._stages.scheduler.finish(request)
            self._stages.proposer.controller.release(request.request_id)
        for drafter in self._stages.proposer.drafters:
            drafter.release([request.request_id for request in requests])


def _unfinished(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if not request.is_finished]
