"""How much to draft: one decision per step over all requests, from cost and acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.speculation.cost import StepCost
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """Most a request may draft in this step; zero length asks no drafter."""

    max_draft_len: int
    max_draft_nodes: int


NO_DRAFT = DraftLimit(0, 0)


@dataclass(frozen=True, slots=True)
class StepFeedback:
    """What one step taught about one request.

    Attributes:
        num_proposed: Nodes that the drafters proposed; None if they were not asked.
        tree: The nodes that were verified.
        path: Kept nodes, from the root down.
    """

    request_id: str
    num_proposed: int | None
    tree: DraftTree
    path: tuple[int, ...]


class LengthController(Protocol):
    """Decides how much is drafted and verified. It may look at anything: verification does not
    depend on it, so no decision can change an answer."""

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        """Before drafting: what to ask the drafters for, within `bounds`."""
        ...

    def prune(self, trees: Mapping[str, DraftTree], num_other_rows: int) -> dict[str, DraftTree]:
        """After drafting: which nodes are worth a row.

        Args:
            trees: Request -> its merged draft.
            num_other_rows: Rows that the pass has anyway (anchors and prompt chunks).
        """
        ...

    def observe(
        self, feedback: Sequence[StepFeedback], rows: int, target_s: float, draft_s: float
    ) -> None:
        """After the step: verified drafts, rows of the pass, its time, time spent drafting."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        ...


class FixedController:
    """Always drafts as much as the bounds allow."""

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        return bounds

    def prune(self, trees: Mapping[str, DraftTree], num_other_rows: int) -> dict[str, DraftTree]:
        return dict(trees)

    def observe(
        self, feedback: Sequence[StepFeedback], rows: int, target_s: float, draft_s: float
    ) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass


@dataclass(slots=True)
class _Acceptance:
    """Decayed acceptance of one request, by depth, against what the drafters claimed.

    Attributes:
        gain: Decayed number of accepted tokens per draft asked for.
        idle_steps: Steps since a draft was last verified although one could have been.
        probe_interval: Idle steps after which a small draft is verified regardless.
        is_muted: Drafting costs more than it brings: no drafter is asked until the next probe.
    """

    probe_interval: int
    claimed: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    accepted: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    gain: float = 1.0
    idle_steps: int = 0
    is_muted: bool = False
    is_probe: bool = False

    def observe(self, tree: DraftTree, path: Sequence[int], decay: float) -> None:
        kept = set(path)
        for node, depth in enumerate(tree.depths):
            at = min(depth, MAX_DEPTH) - 1
            self.claimed[at] = self.claimed[at] * decay + tree.scores[node]
            self.accepted[at] = self.accepted[at] * decay + (node in kept)


class CostController:
    """Drafts where a node buys more expected tokens than its row costs.

    A node's worth is its drafter's score, corrected by how often such claims came true for this
    request at this depth (decayed). Over all requests, nodes are added best first while tokens per
    second rise (the prefix scheduler of DSpark, arXiv 2607.05147, section 4, for trees). A request
    whose drafts were all cut is not asked again for a while; the while doubles with each failed
    probe, so that a hopeless request costs next to nothing.

    Args:
        cost: Seconds of a pass by its rows; refined here.
        decay: Weight that the past keeps per drafted step.
        probe_interval: Steps without a draft before the first probe.
        min_gain: Least tokens per second, as a multiple of plain decoding, that a wider pass must
            promise; 1 or more.
    """

    PRIOR = 1.0
    MAX_BACKOFF = 8
    PROBE = DraftLimit(max_draft_len=2, max_draft_nodes=2)
    NEGLIGIBLE_DRAFT_SHARE = 0.01

    def __init__(
        self, cost: StepCost, *, decay: float, probe_interval: int, min_gain: float
    ) -> None:
        self.cost = cost
        self._decay = decay
        self._probe_interval = probe_interval
        self._min_gain = min_gain
        self._requests: dict[str, _Acceptance] = {}
        self._draft_s = 0.0

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        state = self._state(request_id)
        state.is_probe = state.idle_steps >= state.probe_interval
        if state.is_probe:
            return DraftLimit(
                min(bounds.max_draft_len, self.PROBE.max_draft_len),
                min(bounds.max_draft_nodes, self.PROBE.max_draft_nodes),
            )
        return NO_DRAFT if state.is_muted else bounds

    def prune(self, trees: Mapping[str, DraftTree], num_other_rows: int) -> dict[str, DraftTree]:
        probes = {key for key in trees if self._state(key).is_probe}
        ranked = sorted(
            (-worth, key, node)
            for key, tree in trees.items()
            if key not in probes
            for node, worth in enumerate(self._worths(self._state(key), tree))
        )
        base_rows = num_other_rows + sum(len(trees[key]) for key in probes)
        num_kept = self._best_prefix([-item[0] for item in ranked], len(trees), base_rows)
        kept: dict[str, list[int]] = {key: list(range(len(trees[key]))) for key in probes}
        for _, key, node in ranked[:num_kept]:
            kept.setdefault(key, []).append(node)
        return {key: _keep(tree, kept.get(key, [])) for key, tree in trees.items()}

    def observe(
        self, feedback: Sequence[StepFeedback], rows: int, target_s: float, draft_s: float
    ) -> None:
        self.cost.observe(rows, target_s)
        asked = [item.num_proposed for item in feedback if item.num_proposed is not None]
        if asked and all(asked):  # a drafter that reads a prompt is slow and proposes nothing
            self._draft_s = 0.9 * self._draft_s + 0.1 * draft_s / len(asked)
        num_running = max(len(feedback), 1)
        token_s = self.cost.seconds(num_running) / num_running
        for item in feedback:
            state = self._requests.get(item.request_id)
            if state is not None:
                self._learn(state, item, token_s)

    def release(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def _state(self, request_id: str) -> _Acceptance:
        state = self._requests.get(request_id)
        if state is None:
            state = self._requests[request_id] = _Acceptance(self._probe_interval)
        return state

    def _learn(self, state: _Acceptance, item: StepFeedback, token_s: float) -> None:
        """Update one request; a probe that fails doubles the wait for the next one.

        Nothing is learned from a step in which the drafters had nothing to say.
        """
        if item.num_proposed == 0:
            return
        if not item.tree:
            state.idle_steps += 1
            return
        state.observe(item.tree, item.path, self._decay)
        if state.is_probe:
            longest = self.MAX_BACKOFF * self._probe_interval
            is_hit = bool(item.path)
            state.gain = float(len(item.path))
            state.probe_interval = (
                self._probe_interval if is_hit else min(2 * state.probe_interval, longest)
            )
        else:
            state.gain = self._decay * state.gain + (1.0 - self._decay) * len(item.path)
        state.idle_steps = 0
        is_cheap = self._draft_s < self.NEGLIGIBLE_DRAFT_SHARE * token_s
        state.is_muted = not is_cheap and state.gain * token_s < self._draft_s

    def _worths(self, state: _Acceptance, tree: DraftTree) -> list[float]:
        """[nodes] corrected probability of acceptance; never above the parent's."""
        worths: list[float] = []
        for node, depth in enumerate(tree.depths):
            at = min(depth, MAX_DEPTH) - 1
            truth = (state.accepted[at] + self.PRIOR) / (state.claimed[at] + self.PRIOR)
            parent = tree.parents[node]
            most = 1.0 if parent < 0 else worths[parent]
            worths.append(min(most, tree.scores[node] * truth))
        return worths

    def _best_prefix(self, worths: Sequence[float], num_requests: int, base_rows: int) -> int:
        """How many of the nodes, best first, give the most tokens per second."""
        expected = float(num_requests)
        best, best_rate = 0, expected * self._min_gain / self.cost.seconds(base_rows)
        for count, worth in enumerate(worths, start=1):
            expected += worth
            rate = expected / self.cost.seconds(base_rows + count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best


def _keep(tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
    if len(nodes) == len(tree):
        return tree
    return tree.keep(nodes) if nodes else EMPTY_TREE
