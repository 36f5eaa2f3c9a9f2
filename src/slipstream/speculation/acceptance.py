"""What drafts have turned out to be worth, for one request and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.speculation.tree import ROOT, DraftTree

MAX_DEPTH = 32
PRIOR = 1.0


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

    def observe(self, tree: DraftTree, path: Sequence[int], price: float, decay: float) -> None:
        """Count one draft, of which `path` was kept; the past keeps the weight `decay`."""
        kept = set(path)
        claims, hits = [0.0] * MAX_DEPTH, [0.0] * MAX_DEPTH
        for node, depth in enumerate(tree.depths):
            claims[_place(depth)] += tree.scores[node]
            hits[_place(depth)] += node in kept
        for at in range(min(tree.depth, MAX_DEPTH)):
            self.claimed[at] = decay * self.claimed[at] + claims[at]
            self.accepted[at] = decay * self.accepted[at] + hits[at]
        self.gain = decay * self.gain + (1.0 - decay) * len(path)
        self.price = decay * self.price + (1.0 - decay) * price

    def truth(self, depth: int, expected: float = 1.0) -> float:
        """How much of what is claimed at this depth comes true; `expected` without evidence."""
        at = _place(depth)
        return (self.accepted[at] + PRIOR * expected) / (self.claimed[at] + PRIOR)

    def worths(self, tree: DraftTree, others: DraftRecord) -> list[float]:
        """[nodes] probability that each node is accepted: its score, corrected by experience.

        Children exclude each other, so together they are worth at most their parent.

        Args:
            others: What to expect where this record knows little.
        """
        worths = [
            score * self.truth(depth, others.truth(depth))
            for score, depth in zip(tree.scores, tree.depths, strict=True)
        ]
        for parent in range(ROOT, len(tree)):
            children = tree.children(parent).values()
            most = 1.0 if parent == ROOT else worths[parent]
            total = sum(worths[child] for child in children) or 1.0
            for child in children:
                worths[child] = min(worths[child] * min(most / total, 1.0), most)
        return worths


def _place(depth: int) -> int:
    return min(depth, MAX_DEPTH) - 1
