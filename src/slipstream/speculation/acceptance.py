"""What drafts of one drafter have turned out to be worth, for one request or over all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slipstream.speculation.tree import ROOT, DraftTree

MAX_DEPTH = 32
PRIOR = 1.0


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """What became of some nodes of a draft.

    Attributes:
        claimed, accepted: [depth] sums of the nodes' scores, and of kept nodes, by depth.
        num_kept: Of the nodes.
    """

    claimed: list[float]
    accepted: list[float]
    num_kept: int

    @staticmethod
    def of(tree: DraftTree, nodes: Collection[int], path: Collection[int]) -> DraftOutcome:
        """Of `nodes`, where `path` was kept."""
        depth = min(max((tree.depths[node] for node in nodes), default=0), MAX_DEPTH)
        claimed, accepted = [0.0] * depth, [0.0] * depth
        num_kept = 0
        for node in nodes:
            at = _place(tree.depths[node])
            claimed[at] += tree.scores[node]
            if node in path:
                accepted[at] += 1.0
                num_kept += 1
        return DraftOutcome(claimed, accepted, num_kept)


@dataclass(slots=True)
class DraftRecord:
    """Decayed account of verified drafts: what was claimed, what came true, what it cost.

    Attributes:
        claimed, accepted: [MAX_DEPTH] sums of the nodes' scores, and of kept nodes, by depth.
        gain: Accepted tokens per draft.
        price: Cost of a draft, in tokens that plain decoding makes in the same time.
    """

    claimed: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    accepted: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    gain: float = 1.0
    price: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Whether drafts have cost more than they brought."""
        return self.gain < self.price

    def observe(self, outcome: DraftOutcome, price: float, decay: float) -> None:
        """Count one draft; the past keeps the weight `decay`."""
        for at, (claims, hits) in enumerate(zip(outcome.claimed, outcome.accepted, strict=True)):
            self.claimed[at] = decay * self.claimed[at] + claims
            self.accepted[at] = decay * self.accepted[at] + hits
        self.gain = decay * self.gain + (1.0 - decay) * outcome.num_kept
        self.price = decay * self.price + (1.0 - decay) * price

    def truth(self, depth: int, expected: float = 1.0) -> float:
        """How much of what is claimed at this depth comes true; `expected` without evidence."""
        at = _place(depth)
        return (self.accepted[at] + PRIOR * expected) / (self.claimed[at] + PRIOR)


def worths(tree: DraftTree, truths: Sequence[float]) -> list[float]:
    """[nodes] probability that each node is accepted: its score, corrected by experience.

    Children exclude each other, so together they are worth at most their parent.

    Args:
        truths: [nodes] how much of what is claimed comes true, see `DraftRecord.truth`.
    """
    found = [score * truth for score, truth in zip(tree.scores, truths, strict=True)]
    for parent in range(ROOT, len(tree)):
        children = tree.children(parent).values()
        most = 1.0 if parent == ROOT else found[parent]
        total = sum(found[child] for child in children) or 1.0
        for child in children:
            found[child] = min(found[child] * min(most / total, 1.0), most)
    return found


def _place(depth: int) -> int:
    return min(depth, MAX_DEPTH) - 1
