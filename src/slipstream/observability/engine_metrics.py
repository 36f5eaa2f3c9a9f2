"""What the engine process counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.clock import Clock
from slipstream.observability import catalogue
from slipstream.observability.metrics import Metrics

_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """One request's drafted step: what was verified, and what was kept after stop cuts.

    Attributes:
        num_nodes: Draft tokens verified, at least 1.
        depth: Deepest node, 1 for a single token.
        num_accepted: Draft tokens kept; 0 to `depth`.
        num_emitted: Tokens emitted by the step, the bonus token included.
        proposed, accepted: Drafter name -> its share of the nodes and of the kept ones.
    """

    num_nodes: int
    depth: int
    num_accepted: int
    num_emitted: int
    proposed: Mapping[str, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where one step's time went, in seconds, and how wide its pass was."""

    total_s: float
    draft_s: float
    verify_s: float
    num_rows: int


class EngineMetrics:
    """Typed front of the engine's metrics. Not thread-safe: the engine's loop owns it.

    Args:
        clock: For the rate over the last seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._metrics = Metrics("engine")
        self._clock = clock
        self._started_s = clock.now()
        self._recent: deque[tuple[float, int]] = deque()
        self._num_drafts = 0
        self._num_accepted = 0
        self._depths: Counter[int] = Counter()
        self._accepted_lens: Counter[int] = Counter()
        count_from = self._metrics.count_from
        count_from(catalogue.NUM_DRAFT_TOKENS_PER_POS, lambda: _per_position(self._depths))
        count_from(
            catalogue.NUM_ACCEPTED_TOKENS_PER_POS, lambda: _per_position(self._accepted_lens)
        )
        self._metrics.gauge_from(catalogue.TOKENS_PER_SECOND, self._tokens_per_second)
        self._metrics.gauge_from(catalogue.MEAN_ACCEPTANCE_LENGTH, self._mean_acceptance_length)

    def observe_step(self, times: StepTimes) -> None:
        """One step ended."""
        self._metrics.observe(catalogue.STEP_SECONDS, times.total_s)
        self._metrics.observe(catalogue.STEP_ROWS, times.num_rows)
        self._metrics.count(catalogue.DRAFT_SECONDS, times.draft_s)
        self._metrics.count(catalogue.VERIFY_SECONDS, times.verify_s)

    def observe_cpu(self, run_s: float, wait_s: float) -> None:
        """Processor time that the engine's threads got, and waited for, during steps."""
        self._metrics.count(catalogue.CPU_RUN_SECONDS, run_s)
        self._metrics.count(catalogue.CPU_WAIT_SECONDS, wait_s)

    def observe_draft(self, outcome: DraftOutcome) -> None:
        """One request's draft was verified."""
        count = self._metrics.count
        self._num_drafts += 1
        self._num_accepted += outcome.num_accepted
        count(catalogue.NUM_DRAFTS)
        count(catalogue.NUM_DRAFT_TOKENS, outcome.num_nodes)
        count(catalogue.NUM_ACCEPTED_TOKENS, outcome.num_accepted)
        count(catalogue.NUM_EMITTED_TOKENS, outcome.num_emitted)
        self._depths[outcome.depth] += 1
        self._accepted_lens[outcome.num_accepted] += 1
        for name, num_tokens in outcome.proposed.items():
            count(catalogue.DRAFTER_DRAFTS, 1, name)
            count(catalogue.DRAFTER_DRAFT_TOKENS, num_tokens, name)
        for name, num_tokens in outcome.accepted.items():
            count(catalogue.DRAFTER_ACCEPTED_TOKENS, num_tokens, name)

    def observe_emitted(self, num_tokens: int, gap_s: float | None) -> None:
        """One request's step emitted tokens, `gap_s` after its last ones (None: its first)."""
        if num_tokens <= 0:
            return
        self._metrics.count(catalogue.GENERATION_TOKENS, num_tokens)
        now_s = self._clock.now()
        self._recent.append((now_s, num_tokens))
        self._forget_old(now_s)
        if gap_s is not None:
            self._metrics.observe(catalogue.INTER_TOKEN, gap_s / num_tokens, times=num_tokens)

    def observe_admitted(self, num_prompt_tokens: int, queue_wait_s: float) -> None:
        """A request left the queue for the first time."""
        self._metrics.count(catalogue.PROMPT_TOKENS, num_prompt_tokens)
        self._metrics.observe(catalogue.QUEUE_WAIT, queue_wait_s)

    def observe_prefix(self, num_query_tokens: int, num_hit_tokens: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self._metrics.count(catalogue.PREFIX_QUERY_TOKENS, num_query_tokens)
        self._metrics.count(catalogue.PREFIX_HIT_TOKENS, num_hit_tokens)

    def observe_prefill(self, seconds: float) -> None:
        """A prompt is complete, `seconds` after its first step."""
        self._metrics.observe(catalogue.PREFILL, seconds)

    def observe_first_token(self, seconds: float) -> None:
        """A sequence's first token came `seconds` after its arrival."""
        self._metrics.observe(catalogue.TIME_TO_FIRST_TOKEN, seconds)

    def observe_finished(self, reason: str, end_to_end_s: float) -> None:
        """A sequence ended: `stop`, `length`, `cancelled` or `failed`."""
        self._metrics.count(catalogue.REQUESTS_FINISHED, 1, reason)
        if reason in ("stop", "length"):
            self._metrics.observe(catalogue.END_TO_END, end_to_end_s)

    def count_preemption(self) -> None:
        """A running sequence went back to the queue."""
        self._metrics.count(catalogue.PREEMPTIONS)

    def set_queue(self, *, num_running: int, num_waiting: int) -> None:
        """Sizes of batch and queue now."""
        self._metrics.gauge(catalogue.REQUESTS_RUNNING, num_running)
        self._metrics.gauge(catalogue.REQUESTS_WAITING, num_waiting)

    def set_kv_pages(self, cache: str, pages: Mapping[str, int]) -> None:
        """Pages of one cache (`target` or a drafter's name) by state."""
        for state, num_pages in pages.items():
            self._metrics.gauge(catalogue.KV_PAGES, num_pages, cache, state)

    def set_memory(self, owners: Mapping[str, int], budget_bytes: int | None = None) -> None:
        """Bytes by owner: `weights`, `draft_weights`, `kv`, `draft_kv`, `drafters`, ..."""
        for owner, num_bytes in owners.items():
            self._metrics.gauge(catalogue.MEMORY_BYTES, num_bytes, owner)
        if budget_bytes is not None:
            self._metrics.gauge(catalogue.MEMORY_BUDGET, budget_bytes)

    def set_drafters(self, names: Sequence[str]) -> None:
        """All drafters, active from now on; their counters appear with 0."""
        for name in names:
            self.set_drafter_active(name, is_active=True)
            self._metrics.count(catalogue.DRAFTER_DRAFTS, 0, name)
            self._metrics.count(catalogue.DRAFTER_DRAFT_TOKENS, 0, name)
            self._metrics.count(catalogue.DRAFTER_ACCEPTED_TOKENS, 0, name)

    def set_drafter_active(self, name: str, *, is_active: bool) -> None:
        """A drafter was benched or came back."""
        self._metrics.gauge(catalogue.DRAFTER_ACTIVE, float(is_active), name)

    def count_drafter_fault(self, name: str, kind: str) -> None:
        """A drafter `raised`, `timed_out` or proposed something `invalid`."""
        self._metrics.count(catalogue.DRAFTER_FAULTS, 1, name, kind)

    def read_kernels(
        self,
        model: str,
        products: Callable[[], Mapping[str, int]],
        attention_calls: Callable[[], Mapping[str, int]],
    ) -> None:
        """Ask for the totals by kernel of one model (`target` or a drafter's name) when scraped."""
        self._metrics.count_from(catalogue.KERNEL_PRODUCTS, products, model)
        self._metrics.count_from(catalogue.KERNEL_ATTENTION_CALLS, attention_calls, model)

    def set_states(self, states: Mapping[str, int]) -> None:
        """Recurrent states: free, evictable, leased."""
        for state, number in states.items():
            self._metrics.gauge(catalogue.RECURRENT_STATES, number, state)

    def read_states(
        self,
        snapshot_counts: Callable[[], Mapping[str, int]],
        row_counts: Callable[[], Mapping[str, int]],
    ) -> None:
        """Ask for what happened to recurrent states when scraped."""
        self._metrics.count_from(catalogue.RECURRENT_SNAPSHOTS, snapshot_counts)
        self._metrics.count_from(catalogue.RECURRENT_ROWS, row_counts)

    def exposition(self) -> bytes:
        """See `Metrics.exposition`."""
        return self._metrics.exposition()

    def _forget_old(self, now_s: float) -> None:
        oldest_s = now_s - _WINDOW_S
        while self._recent and self._recent[0][0] < oldest_s:
            self._recent.popleft()

    def _tokens_per_second(self) -> float:
        now_s = self._clock.now()
        self._forget_old(now_s)
        window_s = min(_WINDOW_S, max(now_s - self._started_s, 1e-9))
        return sum(num_tokens for _, num_tokens in self._recent) / window_s

    def _mean_acceptance_length(self) -> float:
        return 1.0 + self._num_accepted / self._num_drafts if self._num_drafts else 1.0


def _per_position(lens: Mapping[int, int]) -> dict[str, int]:
    """Of so many paths by length: how many reach each position, from 0 on."""
    return {
        str(position): sum(number for length, number in lens.items() if length > position)
        for position in range(max(lens, default=0))
    }
