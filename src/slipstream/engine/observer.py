"""From what happens in the engine to its metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from slipstream.engine.acceptance_watch import AcceptanceWatch
from slipstream.engine.cpu_watch import CpuWatch
from slipstream.engine.request import Request
from slipstream.engine.step import Commit, StepReport
from slipstream.errors import RequestError
from slipstream.kv.cache import KvUsage
from slipstream.kv.states import StateUsage
from slipstream.observability.cpu_times import read_cpu_times
from slipstream.observability.engine_metrics import DraftOutcome, EngineMetrics, StepTimes
from slipstream.speculation.drafter import Drafter

log = logging.getLogger("slipstream.engine")


class EngineObserver:
    """Writes metrics and the few log lines that concern the whole engine.

    Args:
        metrics: Where the numbers go.
        drafters: Asked for the memory that they hold.
        memory: Bytes by owner that do not change.
        warn_at: Share of leased pages that is worth a warning.
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        drafters: Sequence[Drafter],
        memory: Mapping[str, int],
        warn_at: float,
    ) -> None:
        self.metrics = metrics
        self._drafters = tuple(drafters)
        self._warn_at = warn_at
        self._is_tight = False
        self._cpu_watch = CpuWatch(read_cpu_times, metrics)
        self._acceptance_watch = AcceptanceWatch(self._drafters)
        metrics.set_memory(memory, sum(memory.values()))
        metrics.set_drafters([drafter.name for drafter in drafters])

    def stepped(self, report: StepReport, now_s: float) -> None:
        """One step is done."""
        self._cpu_watch.stepped(now_s)
        if report.num_rows:
            total_s = report.draft_s + report.verify_s
            times = StepTimes(total_s, report.draft_s, report.verify_s, report.num_rows)
            self.metrics.observe_step(times)
        for _ in report.plan.preempted:
            self.metrics.count_preemption()

    def loaded(self, usages: Mapping[str, KvUsage], *, num_waiting: int, num_running: int) -> None:
        """How full the engine is now, for the gauges; told when they are read, not in every step.

        Args:
            usages: By cache, `target` and drafters' names.
        """
        self.metrics.set_queue(num_running=num_running, num_waiting=num_waiting)
        for name, usage in usages.items():
            self.metrics.set_kv_pages(name, _by_state(usage))
            if usage.states is not None:
                self.metrics.set_states(_by_state(usage.states))
        self.metrics.set_memory({"drafters": sum(item.memory_bytes() for item in self._drafters)})

    def filled(self, usage: KvUsage) -> None:
        """The target's cache after a step; warns when it is getting tight."""
        is_tight = usage.pressure >= self._warn_at
        if not is_tight:
            # Forgotten only well below: a full engine crosses the mark with every request.
            self._is_tight = self._is_tight and usage.pressure >= self._warn_at / 2
        elif not self._is_tight:
            self._is_tight = True
            log.warning(
                "%.0f %% of the KV pages are in use by running requests; at "
                "memory.high_at drafts stop and nobody is admitted",
                100.0 * usage.pressure,
            )

    def admitted(self, request: Request, now_s: float) -> None:
        """A request left the queue for the first time."""
        self.metrics.observe_admitted(request.prompt_len, now_s - request.group.arrival_s)
        num_cached = request.lease.num_cached if request.lease is not None else 0
        self.metrics.observe_prefix(request.prompt_len, num_cached)

    def emitted(self, request: Request, commit: Commit, now_s: float) -> None:
        """One step added tokens to a request; called before its times are updated."""
        last_s = request.last_token_s
        if last_s is None:
            self.metrics.observe_first_token(now_s - request.group.arrival_s)
            if request.admitted_s is not None:
                self.metrics.observe_prefill(now_s - request.admitted_s)
        gap_s = None if last_s is None else now_s - last_s
        self.metrics.observe_emitted(commit.num_new, gap_s)
        if commit.tree:
            sources = commit.tree.sources
            outcome = DraftOutcome(
                num_nodes=len(commit.tree),
                depth=commit.tree.depth,
                num_accepted=len(commit.path),
                num_emitted=commit.num_new,
                proposed=_by_drafter(sources),
                accepted=_by_drafter([sources[node] for node in commit.path]),
            )
            self.metrics.observe_draft(outcome)
            self._acceptance_watch.verified(outcome.proposed, outcome.accepted)

    def finished(self, request: Request, now_s: float) -> None:
        """One choice is complete."""
        reason = request.finish_reason or "stop"
        self.metrics.observe_finished(reason, now_s - request.group.arrival_s)

    def cancelled(self, requests: Sequence[Request], now_s: float) -> None:
        """The client gave up."""
        for request in requests:
            self.metrics.observe_finished("cancelled", now_s - request.group.arrival_s)

    def failed(self, requests: Sequence[Request], error: RequestError, now_s: float) -> None:
        """A request ended with an error."""
        log.warning("request %s failed: %s", requests[0].submission_id, error.message)
        for request in requests:
            self.metrics.observe_finished("failed", now_s - request.group.arrival_s)


def _by_state(usage: KvUsage | StateUsage) -> dict[str, int]:
    """Pages, or states of recurrent layers, by what they are at the moment."""
    return {
        "free": usage.num_free,
        "evictable": usage.num_evictable,
        "leased": usage.num_leased,
    }


def _by_drafter(sources: Iterable[Iterable[str]]) -> dict[str, int]:
    """Nodes of each drafter."""
    counts: dict[str, int] = {}
    for names in sources:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts
