"""A draft tree in the making: which nodes there are and which are worth a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from slipstream.sampling.sampler import RowRequest
from slipstream.sampling.state import SamplingState, advance
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftLaw, DraftTree

ANCHOR_ROW = 0


@dataclass(frozen=True, slots=True)
class DraftRow(RowRequest):
    """How the token after a node is proposed.

    Attributes:
        wants_law: It must be a draw, with its law; else the likeliest ones are proposed.
    """

    wants_law: bool = False


class Child(NamedTuple):
    """A proposed token, its share of its parent's acceptance, and what it was drawn from."""

    token: int
    share: float
    law: DraftLaw | None = None


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """Bounds of one tree.

    Attributes:
        max_len: Most nodes from root to leaf.
        max_nodes: Most nodes.
        num_children: Most children of a node, and most nodes of one depth that get children.
        least_score: A node that is less likely to be accepted is not proposed.
    """

    max_len: int
    max_nodes: int
    num_children: int
    least_score: float


class Growth:
    """Tree of one request, grown depth by depth; a chain where the context wants laws.

    A node's score is the product of the shares along its path, so it never exceeds its parent's:
    the best nodes always form a tree, and a node that is not among them now never will be.

    Args:
        final_tokens: Tokens that end the output; nothing is drafted behind them.
    """

    def __init__(
        self, context: DraftContext, limits: GrowthLimits, final_tokens: frozenset[int]
    ) -> None:
        self._context = context
        self._limits = replace(limits, num_children=1) if context.wants_laws else limits
        self._final_tokens = final_tokens
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._laws: list[DraftLaw] = []
        self._depths: list[int] = []
        self._paths: dict[int, tuple[int, ...]] = {ROOT: (ANCHOR_ROW,)}
        self._states: dict[int, SamplingState] = {ROOT: context.state}
        self._first_new = 0

    def request(self, node: int) -> DraftRow:
        """How the token after `node` is drawn; -1 is the anchor."""
        context = self._context
        depth = 0 if node == ROOT else self._depths[node]
        position = len(context.tokens) + depth
        return DraftRow(
            context.params, self._states[node], context.seed, position, context.wants_laws
        )

    def add_children(self, node: int, children: Iterable[Child]) -> None:
        """Add tokens that may follow `node`, the best first."""
        path_score = 1.0 if node == ROOT else self._scores[node]
        depth = 1 if node == ROOT else self._depths[node] + 1
        for token, share, law in children:
            score = path_score * share
            if score < self._limits.least_score:
                continue
            self._tokens.append(token)
            self._parents.append(node)
            self._scores.append(score)
            self._depths.append(depth)
            if law is not None:
                self._laws.append(law)

    def take_frontier(self) -> list[int]:
        """The best of the nodes added since the last call that can have children."""
        first, self._first_new = self._first_new, len(self._tokens)
        fertile = [
            node
            for node in self._best_nodes()
            if node >= first
            and self._depths[node] < self._limits.max_len
            and self._tokens[node] not in self._final_tokens
        ]
        return fertile[: self._limits.num_children]

    @property
    def scores(self) -> tuple[float, ...]:
        """Scores of all nodes so far, by node."""
        return tuple(self._scores)

    def token(self, node: int) -> int:
        """The token of a node."""
        return self._tokens[node]

    @property
    def max_len(self) -> int:
        """Most nodes from root to leaf."""
        return self._limits.max_len

    def parent(self, node: int) -> int:
        """The node's parent; -1 is the anchor."""
        return self._parents[node]

    def parent_row(self, node: int) -> int:
        """Cache row of the node's parent."""
        return self._paths[self._parents[node]][-1]

    def place(self, node: int, row: int) -> tuple[int, ...]:
        """Remember the cache row of `node`; returns the rows from the anchor to it."""
        parent = self._parents[node]
        path = self._paths[node] = (*self._paths[parent], row)
        self._states[node] = advance(self._context.params, self._states[parent], self._tokens[node])
        return path

    def tree(self, source: str) -> DraftTree:
        """The best nodes as a draft."""
        if not self._tokens:
            return EMPTY_TREE
        everything = DraftTree(
            tokens=tuple(self._tokens),
            parents=tuple(self._parents),
            scores=tuple(self._scores),
            sources=(frozenset((source,)),) * len(self._tokens),
            laws=tuple(self._laws) if self._context.wants_laws else None,
        )
        if len(everything) <= self._limits.max_nodes:
            return everything
        return everything.keep(self._best_nodes())

    def _best_nodes(self) -> list[int]:
        """Up to `max_nodes` nodes, best score first; of equal scores the earlier one."""
        ranked = sorted(range(len(self._tokens)), key=lambda node: -self._scores[node])
        return ranked[: self._limits.max_nodes]
