"""Drafting by what it costs and what it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.speculation.acceptance import DraftRecord, worths
from slipstream.speculation.bare import BarePasses
from slipstream.speculation.control import NO_DRAFT, DraftLimit, StepFeedback
from slipstream.speculation.cost import StepCost
from slipstream.speculation.lane import Lane, LaneDraft
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree

ONE_NODE = DraftLimit(1, 1)
GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class _Prices:
    """What a step's drafts cost, in tokens that plain decoding makes in the same time.

    Attributes:
        asks: Drafter -> of asking it once; none where that is not known or negligible.
        node: Of verifying a node.
    """

    asks: Mapping[str, float]
    node: float


class CostController:
    """Drafts where a node buys more expected tokens than its row costs.

    A node's worth is its drafter's score, corrected by how often such claims of this drafter came
    true for this request, and for all requests where this one is new. Over all requests, nodes are
    added best first while the batch's tokens per second rise (the prefix scheduler of DSpark, arXiv
    2607.05147, section 4, for trees).

    Each drafter of each request has a lane. A node counts for the cheapest of the drafters that
    proposed it. A lane whose drafts cost more than they bring is muted: its drafter is not asked.

    What is never verified is never learned, so now and then a lane that is muted, or whose drafts
    are cut, has one more node verified than pays: a probe. A muted lane whose drafter is so dear
    that one token could not pay for asking it has its whole draft verified. The wait doubles with
    each probe that fails, and is so long that probes take at most `PROBE_SHARE` of the time.

    What drafts cost is known only beside passes without any, and a wrong belief would hide itself.
    So now and then a pass is made without its drafts, though they are there, see `BarePasses`.

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
    NEGLIGIBLE_DRAFT_SHARE = 0.01
    DEAR_ASK = 0.5  # tokens
    DEAR_NODES = 8  # about as many are verified in a probe of such a drafter
    USUAL_SHARE = 0.75  # of lanes that were asked in the step before too
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
        self._pools: dict[str, DraftRecord] = {}
        self._requests: dict[str, dict[str, Lane]] = {}  # request -> drafter -> its lane
        self._num_lanes = 0
        self._draft_s: dict[str, float] = {}
        self._ask_prices: dict[str, float] = {}  # in tokens of plain decoding, as _row_price
        self._row_price = 0.0
        self._promised_gain = 1.0  # of the last drafts, in tokens per second
        self._bare = BarePasses()
        self._is_bare = False
        self._cut: dict[str, set[str]] = {}  # request -> drafters with a node that was cut

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        lanes = self._requests.get(request_id, {})
        for name, lane in lanes.items():
            lane.is_probe = lane.num_cut_steps >= self._wait(name, lane)
        if not lanes or not all(lane.is_muted for lane in lanes.values()):
            return bounds
        probing = [name for name, lane in lanes.items() if lane.is_probe]
        if not probing:
            return NO_DRAFT
        return bounds if any(map(self._is_dear, probing)) else ONE_NODE

    def asks(self, request_id: str, drafter: str) -> bool:
        return self._lane(request_id, drafter).asks

    def prune(
        self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
    ) -> dict[str, DraftTree]:
        ranked = sorted(
            (-worth, key, node)
            for key, tree in trees.items()
            for node, worth in enumerate(self._worths(key, tree))
        )
        promised = [-item[0] for item in ranked]
        # By what the drafts before have promised: these could tell something of their own tokens.
        self._is_bare = self._bare.is_due(self._promised_gain)
        num_kept, self._promised_gain = self._best_prefix(promised, num_tokens, num_other_rows)
        if self._is_bare:
            return dict.fromkeys(trees, EMPTY_TREE)
        kept: dict[str, list[int]] = {}
        for _, key, node in ranked[:num_kept]:
            kept.setdefault(key, []).append(node)
        probing = {
            (key, name)
            for key in trees
            for name, lane in self._requests.get(key, {}).items()
            if lane.is_probe
        }
        for _, key, node in ranked[num_kept:] if probing else ():
            tree, nodes = trees[key], kept.setdefault(key, [])
            probe = key, self._credited(tree.sources[node])
            if probe in probing and tree.parents[node] in (ROOT, *nodes):
                nodes.append(node)
                lane = self._lane(*probe)
                if not (lane.is_muted and self._is_dear(probe[1])):
                    probing.remove(probe)
        self._cut = {key: self._cut_of(tree, kept.get(key, [])) for key, tree in trees.items()}
        return {key: _keep(tree, kept.get(key, [])) for key, tree in trees.items()}

    def observe(
        self,
        feedback: Sequence[StepFeedback],
        rows: int,
        target_s: float,
        draft_s: Mapping[str, float],
    ) -> None:
        self.cost.observe(rows, target_s)
        if self._is_bare:  # it says nothing about drafts
            self._is_bare = False
            return
        for name, seconds in draft_s.items():
            self._learn_ask(name, seconds, feedback)
        prices = self._prices(feedback, rows)
        for item in feedback:
            nodes = self._nodes_by_drafter(item.tree)
            for name, lane in self._requests.get(item.request_id, {}).items():
                if name in item.proposed:
                    self._learn(name, lane, item, nodes.get(name, []), prices)
                else:
                    lane.rest()

    def release(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def _lane(self, request_id: str, drafter: str) -> Lane:
        """A new one begins somewhere between two probes, so that short requests are probed as
        often as long ones."""
        lanes = self._requests.setdefault(request_id, {})
        lane = lanes.get(drafter)
        if lane is None:
            lane = lanes[drafter] = Lane.after(self._pool(drafter))
            self._num_lanes += 1
            phase = self._num_lanes * GOLDEN_RATIO % 1.0
            lane.num_cut_steps = int(phase * self._wait(drafter, lane))
        return lane

    def _pool(self, drafter: str) -> DraftRecord:
        pool = self._pools.get(drafter)
        if pool is None:
            pool = self._pools[drafter] = DraftRecord()
        return pool

    def _wait(self, drafter: str, lane: Lane) -> float:
        num_nodes = self.DEAR_NODES if self._is_dear(drafter) else 1
        price = self._ask_prices.get(drafter, 0.0) + num_nodes * self._row_price
        return lane.wait(self._probe_interval, price / self.PROBE_SHARE)

    def _credited(self, sources: frozenset[str]) -> str:
        """The drafter that a node from `sources` counts for."""
        if len(sources) == 1:
            (name,) = sources
            return name
        return min(sources, key=lambda name: (self._draft_s.get(name, 0.0), name))

    def _nodes_by_drafter(self, tree: DraftTree) -> dict[str, list[int]]:
        nodes: dict[str, list[int]] = {}
        for node, sources in enumerate(tree.sources):
            nodes.setdefault(self._credited(sources), []).append(node)
        return nodes

    def _cut_of(self, tree: DraftTree, kept: Sequence[int]) -> set[str]:
        """Drafters for which nodes count that are not among `kept`."""
        if len(kept) == len(tree):
            return set()
        cut = set(range(len(tree))).difference(kept)
        return {self._credited(tree.sources[node]) for node in cut}

    def _is_dear(self, drafter: str) -> bool:
        return self._ask_prices.get(drafter, 0.0) >= self.DEAR_ASK

    def _worths(self, request_id: str, tree: DraftTree) -> list[float]:
        known: dict[tuple[str, int], float] = {}
        truths = []
        for sources, depth in zip(tree.sources, tree.depths, strict=True):
            key = self._credited(sources), depth
            if key not in known:
                record = self._lane(request_id, key[0]).record
                known[key] = record.truth(depth, self._pool(key[0]).truth(depth))
            truths.append(known[key])
        return worths(tree, truths)

    def _learn_ask(self, name: str, seconds: float, feedback: Sequence[StepFeedback]) -> None:
        """What asking a drafter takes where it is asked all the time: who was not asked before has
        more to take in, so it takes no more than what a step with such requests did."""
        num_asked = num_usual = 0
        for item in feedback:
            if name not in item.proposed:
                continue
            num_asked += 1
            lane = self._requests.get(item.request_id, {}).get(name)
            if lane is not None and lane.was_asked:
                num_usual += not lane.may_be_reading(item.proposed[name])
        share_s = seconds / max(num_asked, 1)
        known_s = self._draft_s.get(name)
        if known_s is None and num_usual:
            self._draft_s[name] = share_s
        elif known_s is not None and (
            share_s < known_s or num_usual >= self.USUAL_SHARE * num_asked
        ):
            self._draft_s[name] = 0.9 * known_s + 0.1 * share_s

    def _prices(self, feedback: Sequence[StepFeedback], rows: int) -> _Prices:
        num_running = max(len(feedback), 1)
        plain_s, wider_s = self.cost.curve(num_running, 1)
        token_s = plain_s / num_running
        num_nodes = sum(len(item.tree) for item in feedback)
        nodes_s = self.cost.seconds(rows) - self.cost.seconds(rows - num_nodes)
        asks = {name: seconds / token_s for name, seconds in self._draft_s.items()}
        self._ask_prices, self._row_price = asks, (wider_s - plain_s) / token_s
        least = self.NEGLIGIBLE_DRAFT_SHARE
        return _Prices(
            asks={name: ask for name, ask in asks.items() if ask >= least},
            node=nodes_s / num_nodes / token_s if num_nodes else 0.0,
        )

    def _learn(
        self,
        name: str,
        lane: Lane,
        item: StepFeedback,
        nodes: Sequence[int],
        prices: _Prices,
    ) -> None:
        ask = prices.asks.get(name, 0.0)
        draft = LaneDraft(
            num_proposed=item.proposed[name],
            tree=item.tree,
            nodes=nodes,
            path=item.path,
            price=ask + prices.node * len(nodes),
            is_whole=name not in self._cut.get(item.request_id, ()),
            is_free=not ask,
        )
        pool_decay = 1.0 - (1.0 - self._decay) / self.POOL_MEMORY
        lane.learn(draft, self._pool(name), self._decay, pool_decay)

    def _best_prefix(
        self, promised: Sequence[float], num_tokens: int, base_rows: int
    ) -> tuple[int, float]:
        """How many of the nodes, best first, give the most tokens per second, and the gain."""
        expected = float(num_tokens)
        plain_s, *wider_s = self.cost.curve(base_rows, len(promised))
        plain_rate = expected / plain_s
        best, best_rate = 0, plain_rate * self._min_gain
        for count, (worth, seconds) in enumerate(zip(promised, wider_s, strict=True), start=1):
            expected += worth
            rate = expected / seconds
            if rate > best_rate:
                best, best_rate = count, rate
            elif self._stops_at_loss:
                break
        return best, best_rate / plain_rate if best else 1.0


def _keep(tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
    if len(nodes) == len(tree):
        return tree
    return tree.keep(nodes) if nodes else EMPTY_TREE
