"""The step: plan, propose, forward, verify, commit, observe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.clock import Clock
from slipstream.engine.asks import draft_asks
from slipstream.engine.batching import StepBatch, StepItem, build_batch
from slipstream.engine.messages import SpeculationOptions, TokenLogprob
from slipstream.engine.request import Request
from slipstream.engine.scheduler import Scheduler, StepPlan
from slipstream.engine.taps import TapBacklog
from slipstream.engine.token_logprobs import DrawnRows, LogprobReporter
from slipstream.errors import RequestError
from slipstream.execution.batch import ForwardBatch, ForwardOutput, IntArray
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import advance
from slipstream.speculation.control import NO_DRAFT, DraftLimit, StepFeedback
from slipstream.speculation.drafter import Observation
from slipstream.speculation.propose import Ask, Proposal, Proposer
from slipstream.speculation.tree import DraftTree
from slipstream.speculation.verification import Verification
from slipstream.speculation.verify import Verdict


@dataclass(frozen=True, slots=True)
class Commit:
    """What one step did to one request.

    Attributes:
        num_new: Tokens that became output.
        path: Draft nodes among them.
        fault: What the request fails with after these tokens; None when all is well.
    """

    request: Request
    tree: DraftTree
    num_new: int
    path: tuple[int, ...]
    fault: RequestError | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, for events and metrics.

    Attributes:
        commits: One per request that drew a token.
        num_rows: Rows of the target pass; 0 when there was nothing to do.
        draft_s, target_s, sample_s, commit_s: Where the step's time went, in order; what drafters
            take in of the pass counts as drafting.
    """

    plan: StepPlan
    commits: tuple[Commit, ...] = ()
    num_rows: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0

    @property
    def verify_s(self) -> float:
        """Time of the pass and of all that its rows brought about."""
        return self.target_s + self.sample_s + self.commit_s


class SlotCopies(Protocol):
    """Storage of keys and values, as far as a commit needs it."""

    def copy(self, sources: IntArray, targets: IntArray) -> None:
        """Copy the rows of all layers, bit for bit, in order."""
        ...


class Target(Protocol):
    """What a step needs of the model's runner."""

    @property
    def storage(self) -> SlotCopies: ...

    def forward(self, batch: ForwardBatch) -> ForwardOutput: ...


@dataclass(frozen=True, slots=True)
class Stages:
    """The parts that a step passes through; each owns its own state."""

    scheduler: Scheduler
    proposer: Proposer
    taps: TapBacklog
    runner: Target
    sampler: Sampler
    verification: Verification
    logprobs: LogprobReporter
    bounds: DraftLimit
    clock: Clock


def step(stages: Stages) -> StepReport:
    """Run one step over all requests that the scheduler chooses."""
    clock = stages.clock
    plan = stages.scheduler.plan(clock.now(), lambda request: _draft_limit(stages, request))
    if not plan.items:
        return StepReport(plan)

    asks = draft_asks(plan, stages.verification)
    told_s = _tell(stages, asks)
    proposal = stages.proposer.propose(
        asks,
        num_other_rows=sum(item.num_tokens for item in plan.items),
        num_tokens=sum(item.is_last_chunk for item in plan.items),
        told_s=told_s,
    )
    batch = build_batch(plan, proposal.trees, stages.proposer.tap_layer_ids)

    started_s = clock.now()
    output = stages.runner.forward(batch.forward)
    forwarded_s = clock.now()

    sampled = [item for item in batch.items if item.samples]
    candidates = [item.candidate() for item in sampled]
    verdicts = stages.verification.verify(stages.sampler, output.rows, candidates)
    verified_s = clock.now()

    _commit_prompts(stages, batch, output)
    commits = tuple(
        _commit(stages, item, verdict, output)
        for item, verdict in zip(sampled, verdicts, strict=True)
    )
    absorbed_s = committed_s = clock.now()
    if output.taps:
        paths = {commit.request.request_id: commit.path for commit in commits}
        stages.taps.add(batch, paths, output)
        absorbed_s = clock.now()
    report = StepReport(
        plan=plan,
        commits=commits,
        num_rows=len(batch.forward.tokens),
        draft_s=proposal.draft_s + absorbed_s - committed_s,
        target_s=forwarded_s - started_s,
        sample_s=verified_s - forwarded_s,
        commit_s=committed_s - verified_s,
    )
    _observe(stages, proposal, report)
    return report


def _tell(stages: Stages, asks: Sequence[Ask]) -> float:
    """Tell drafters the states that they need for these asks; the seconds that it took."""
    if not asks:
        return 0.0
    asked_s = stages.clock.now()
    stages.taps.settle(stages.proposer.needing_taps(asks))
    return stages.clock.now() - asked_s


def draft_bounds(stages: Stages, options: SpeculationOptions) -> DraftLimit:
    """Most that a request with these options may draft, whatever the controller allows."""
    if options.enabled is False or options.drafters == () or not stages.proposer.drafters:
        return NO_DRAFT
    max_nodes = _least(stages.bounds.max_draft_nodes, options.max_draft_nodes)
    max_len = min(_least(stages.bounds.max_draft_len, options.max_draft_len), max_nodes)
    return DraftLimit(max_len, max_nodes) if max_len > 0 else NO_DRAFT


def _draft_limit(stages: Stages, request: Request) -> DraftLimit:
    """The controller's limit within the server's bounds and the request's own."""
    bounds = draft_bounds(stages, request.group.submit.speculation)
    if bounds is NO_DRAFT:
        return NO_DRAFT
    return stages.proposer.controller.limit(request.request_id, bounds)


def _commit_prompts(stages: Stages, batch: StepBatch, output: ForwardOutput) -> None:
    """Commit the rows of known tokens, and report prompt log-probabilities of the first choice."""
    for item in batch.items:
        request = item.request
        assert request.lease is not None, "a request in a pass holds a lease"
        if item.num_prompt_rows:
            _report_prompt(stages, item, output)
        if not item.samples:
            request.lease.commit(item.num_tokens)
            request.publish_snapshots()


def _report_prompt(stages: Stages, item: StepItem, output: ForwardOutput) -> None:
    """Log-probabilities of the prompt tokens after this chunk's rows; after a preemption the first
    rows are computed again, and what was reported before is not reported twice."""
    request = item.request
    if request.group.prompt_fault is not None:
        return
    reported = request.group.prompt_logprobs
    num_known = max(len(reported) - request.num_computed, 0)
    first = request.num_computed + num_known
    tokens = request.tokens[first + 1 : request.num_computed + 1 + item.num_prompt_rows]
    row = item.first_logit_row + num_known
    rows = range(row, row + len(tokens))
    if tokens:
        new = stages.logprobs.of_prompt(output.logits, rows, tokens, request.params)
        reported.extend(new.entries)
        request.group.prompt_fault = new.fault


def _commit(stages: Stages, item: StepItem, verdict: Verdict, output: ForwardOutput) -> Commit:
    """The kept path becomes the sequence; everything else is rolled back."""
    request, lease = item.request, item.request.lease
    assert lease is not None, "a request in a pass holds a lease"
    verdict, logprobs = _reported(stages, request, verdict, output)
    num_new = 0
    for token in verdict.tokens:
        num_new += 1
        if not request.accept_token(token):
            break
    path = verdict.path[:num_new]
    kept = [*range(item.num_tokens), *(item.num_tokens + node for node in path)]
    moves = lease.compact(kept)
    if len(moves):
        stages.runner.storage.copy(moves.sources, moves.targets)
    lease.commit(len(kept))
    lease.rollback()
    if not request.group.is_prompt_cached:
        lease.publish(request.tokens[: lease.num_tokens])
        request.group.is_prompt_cached = True
    request.publish_snapshots()
    request.add_logprobs(logprobs[:num_new])
    # What a row behind the end of the output lacks is nobody's fault.
    fault = None if request.is_finished else verdict.fault
    return Commit(request, item.tree, num_new, path, fault)


def _reported(
    stages: Stages, request: Request, verdict: Verdict, output: ForwardOutput
) -> tuple[Verdict, tuple[TokenLogprob, ...]]:
    """The verdict up to where log-probabilities that were asked for cannot be given, and these."""
    if request.group.prompt_fault is not None:
        return Verdict((), (), (), request.group.prompt_fault), ()
    if not request.params.logprobs:
        return verdict, ()
    reported = stages.logprobs.of_output(output.logits, _drawn_rows(request, verdict))
    if reported.fault is None:
        return verdict, reported.entries
    count = len(reported.entries)
    cut = Verdict(
        verdict.tokens[:count], verdict.path[:count], verdict.rows[:count], reported.fault
    )
    return cut, reported.entries


def _drawn_rows(request: Request, verdict: Verdict) -> DrawnRows:
    """The rows that a verdict's tokens were drawn from, with the sampler's state at each."""
    rows: list[RowRequest] = []
    state = request.state
    for position, token in enumerate(verdict.tokens, start=len(request.tokens)):
        rows.append(RowRequest(request.params, state, request.seed, position))
        state = advance(request.params, state, token)
    return DrawnRows(verdict.rows, tuple(rows), verdict.tokens)


def _observe(stages: Stages, proposal: Proposal, report: StepReport) -> None:
    """Drafters and controller learn what was kept."""
    observations = []
    feedback = []
    for commit in report.commits:
        request = commit.request
        request.counter.observe(commit.tree, commit.path, commit.num_new)
        feedback.append(
            StepFeedback(
                request.request_id,
                proposal.proposed.get(request.request_id, {}),
                commit.tree,
                commit.path,
            )
        )
        observations.append(
            Observation(
                request_id=request.request_id,
                salt=request.salt,
                tokens=request.tokens,
                num_new=commit.num_new,
                prompt_len=request.prompt_len,
                is_finished=request.is_finished,
            )
        )
    stages.proposer.controller.observe(
        feedback, report.num_rows, report.verify_s, proposal.drafter_s
    )
    for drafter in stages.proposer.drafters:
        drafter.observe(observations)


def _least(bound: int, wanted: int | None) -> int:
    return bound if wanted is None else min(bound, wanted)
