"""Drafting by what it costs and what it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.speculation.acceptance import DraftRecord
from slipstream.speculation.control import NO_DRAFT, DraftLimit, StepFeedback
from slipstream.speculation.cost import StepCost
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

ONE_NODE = DraftLimit(1, 1)
GOLDEN_RATIO = 0.6180339887498949


@dataclass(slots=True)
class _RequestState:
    """What the controller remembers of one request.

    Attributes:
        record: Its drafts so far; it starts with what is known of all requests.
        num_cut_steps: Steps since all that could have been drafted was verified.
        num_silent_steps: Steps in a row in which the drafters were asked and had nothing to say.
        backoff: Doubles with every probe that failed.
        depth: Of the last draft that was verified, probes aside; 0 if all of it was cut.
        is_muted: Drafting costs more than it brings: no drafter is asked until the next probe.
        is_probe: In this step one more node is verified than pays.
    """

    record: DraftRecord
    num_cut_steps: int
    num_silent_steps: int = 0
    backoff: int = 1
    depth: int = 0
    is_muted: bool = False
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class _Prices:
    """What a step's drafts cost, in tokens that plain decoding makes in the same time."""

    ask: float
    node: float


class CostController:
    """Drafts where a node buys more expected tokens than its row costs.

    A node's worth is its drafter's score, corrected by how often such claims came true for this
    request, and for all requests where this one is new. Over all requests, nodes are added best
    first while the batch's tokens per second rise (the prefix scheduler of DSpark, arXiv
    2607.05147, section 4, for trees). A request whose drafts cost more than they bring is muted:
    no drafter is asked.

    What is never verified is never learned, so now and then a request that is muted, or whose
    drafts are cut, has one more node verified than pays: a probe. The wait doubles with each probe
    that fails, and is so long that probes take at most `PROBE_SHARE` of the time.

    Args:
        cost: Seconds of a pass by its rows; refined here.
        decay: Weight that the past keeps per draft.
        probe_interval: Least steps without a draft before a probe.
        min_gain: Least tokens per second, as a multiple of plain decoding, that a wider pass must
            promise; 1 or more.
        stops_at_loss: Add nodes until the first that gains nothing, and look no further. Whether a
            node is verified then never depends on its own token, which drafts that are verified by
            rejection need.
    """

    PROBE_SHARE = 0.01
    MAX_BACKOFF = 8
    DEEPER_PROBES = 4  # as often again where a draft is verified and could be deeper
    MAX_SILENT_STEPS = 16
    NEGLIGIBLE_DRAFT_SHARE = 0.01
    POOL_MEMORY = 5  # drafts of the pool that weigh as much as one of a request

    def __init__(
        self,
        cost: StepCost,
        *,
        decay: float,
        probe_interval: int,
        min_gain: float,
        stops_at_loss: bool = False,
    ) -> None:
        self.cost = cost
        self._decay = decay
        self._probe_interval = probe_interval
        self._min_gain = min_gain
        self._stops_at_loss = stops_at_loss
        self._pool = DraftRecord()
        self._requests: dict[str, _RequestState] = {}
        self._num_requests = 0
        self._draft_s: float | None = None
        self._probe_price = 0.0

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        state = self._state(request_id)
        state.is_probe = state.num_cut_steps >= self._wait(state)
        if not state.is_muted:
            return bounds
        return ONE_NODE if state.is_probe else NO_DRAFT

    def prune(
        self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
    ) -> dict[str, DraftTree]:
        ranked = sorted(
            (-worth, key, node)
            for key, tree in trees.items()
            for node, worth in enumerate(self._state(key).record.worths(tree, self._pool))
        )
        worths = [-item[0] for item in ranked]
        num_kept = self._best_prefix(worths, num_tokens, num_other_rows)
        kept: dict[str, list[int]] = {}
        for _, key, node in ranked[:num_kept]:
            kept.setdefault(key, []).append(node)
        probed: set[str] = set()
        for _, key, node in ranked[num_kept:]:
            if key not in probed and self._state(key).is_probe:
                kept.setdefault(key, []).append(node)
                probed.add(key)
        return {key: _keep(tree, kept.get(key, [])) for key, tree in trees.items()}

    def observe(
        self, feedback: Sequence[StepFeedback], rows: int, target_s: float, draft_s: float
    ) -> None:
        self.cost.observe(rows, target_s)
        prices = self._prices(feedback, rows, draft_s)
        for item in feedback:
            state = self._requests.get(item.request_id)
            if state is not None:
                self._learn(state, item, prices)

    def release(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def _state(self, request_id: str) -> _RequestState:
        """A new request starts with the pool's experience, and somewhere between two probes, so
        that short requests are probed as often as long ones."""
        state = self._requests.get(request_id)
        if state is None:
            pool = self._pool
            state = self._requests[request_id] = _RequestState(
                DraftRecord(gain=pool.gain, price=pool.price),
                num_cut_steps=0,
                backoff=self.MAX_BACKOFF if pool.is_loss else 1,
                is_muted=pool.is_loss,
            )
            self._num_requests += 1
            phase = self._num_requests * GOLDEN_RATIO % 1.0
            state.num_cut_steps = int(phase * self._wait(state))
        return state

    def _wait(self, state: _RequestState) -> float:
        """Steps with something cut, from one probe to the next."""
        share = self.DEEPER_PROBES if state.depth else 1
        interval = self._probe_interval * state.backoff / share
        return max(interval, self._probe_price / self.PROBE_SHARE)

    def _prices(self, feedback: Sequence[StepFeedback], rows: int, draft_s: float) -> _Prices:
        asked = [item for item in feedback if item.num_proposed is not None]
        if asked and not any(self._may_be_reading(item) for item in asked):
            share_s = draft_s / len(asked)
            known_s = share_s if self._draft_s is None else self._draft_s
            self._draft_s = 0.9 * known_s + 0.1 * share_s
        num_running = max(len(feedback), 1)
        plain_s = self.cost.seconds(num_running)
        token_s = plain_s / num_running
        num_nodes = sum(len(item.tree) for item in feedback)
        nodes_s = self.cost.seconds(rows) - self.cost.seconds(rows - num_nodes)
        ask_s = self._draft_s or 0.0
        self._probe_price = (ask_s + self.cost.seconds(num_running + 1) - plain_s) / token_s
        is_cheap = ask_s < self.NEGLIGIBLE_DRAFT_SHARE * token_s
        return _Prices(
            ask=0.0 if is_cheap else ask_s / token_s,
            node=nodes_s / num_nodes / token_s if num_nodes else 0.0,
        )

    def _may_be_reading(self, item: StepFeedback) -> bool:
        """Whether a drafter may still read the prompt, which is slow and proposes nothing."""
        state = self._requests.get(item.request_id)
        num_silent = 0 if state is None else state.num_silent_steps
        return item.num_proposed == 0 and num_silent < self.MAX_SILENT_STEPS

    def _learn(self, state: _RequestState, item: StepFeedback, prices: _Prices) -> None:
        if self._may_be_reading(item):
            state.num_silent_steps += 1
            return
        if item.num_proposed:
            state.num_silent_steps = 0
        is_whole = item.num_proposed == len(item.tree) and not state.is_muted
        state.num_cut_steps = 0 if is_whole else state.num_cut_steps + 1
        if item.num_proposed is None:
            return
        if not state.is_probe:
            state.depth = item.tree.depth
        if not (item.tree or prices.ask):
            return
        price = prices.ask + prices.node * len(item.tree)
        state.record.observe(item.tree, item.path, price, self._decay)
        pool_decay = 1.0 - (1.0 - self._decay) / self.POOL_MEMORY
        self._pool.observe(item.tree, item.path, price, pool_decay)
        if state.is_probe:
            self._learn_probe(state, item, price)
        state.is_muted = state.record.is_loss

    def _learn_probe(self, state: _RequestState, item: StepFeedback, price: float) -> None:
        is_hit = bool(item.path) and len(item.path) == item.tree.depth
        state.backoff = 1 if is_hit else min(2 * state.backoff, self.MAX_BACKOFF)
        state.num_cut_steps = 0
        if state.is_muted:
            state.depth = len(item.path)
            state.record.gain, state.record.price = float(len(item.path)), price

    def _best_prefix(self, worths: Sequence[float], num_tokens: int, base_rows: int) -> int:
        """How many of the nodes, best first, give the most tokens per second."""
        expected = float(num_tokens)
        best, best_rate = 0, expected * self._min_gain / self.cost.seconds(base_rows)
        for count, worth in enumerate(worths, start=1):
            expected += worth
            rate = expected / self.cost.seconds(base_rows + count)
            if rate > best_rate:
                best, best_rate = count, rate
            elif self._stops_at_loss:
                break
        return best


def _keep(tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
    if len(nodes) == len(tree):
        return tree
    return tree.keep(nodes) if nodes else EMPTY_TREE
