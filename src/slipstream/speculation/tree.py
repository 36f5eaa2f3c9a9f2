"""The draft as data: what a drafter proposes and the target verifies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROOT = -1


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Proposed tokens as a tree below the anchor; the root itself is not a node.

    Nodes are in topological order (a parent comes before its children), and siblings carry
    different tokens.

    Attributes:
        tokens: [nodes] proposed token ids.
        parents: [nodes] index of the parent node, or -1 for the root.
        scores: [nodes] estimated probability that the node is accepted, in [0, 1].
        sources: [nodes] names of the drafters that proposed the node.

    Raises:
        ValueError: The arrays do not form such a tree.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    sources: tuple[frozenset[str], ...] = ()

    def __post_init__(self) -> None:
        num_nodes = len(self.tokens)
        if not len(self.parents) == len(self.scores) == len(self.sources) == num_nodes:
            raise ValueError(
                f"a draft tree needs arrays of one length, got tokens {num_nodes}, parents "
                f"{len(self.parents)}, scores {len(self.scores)}, sources {len(self.sources)}"
            )
        seen: set[tuple[int, int]] = set()
        for node, (token, parent, score) in enumerate(
            zip(self.tokens, self.parents, self.scores, strict=True)
        ):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents must come first")
            if (parent, token) in seen:
                raise ValueError(f"node {node} repeats token {token} below parent {parent}")
            if token < 0 or not 0.0 <= score <= 1.0:
                raise ValueError(f"node {node} has token {token} and score {score}")
            seen.add((parent, token))

    @classmethod
    def chain(cls, tokens: Sequence[int], scores: Sequence[float], source: str) -> DraftTree:
        """A tree with one branch."""
        return cls(
            tokens=tuple(tokens),
            parents=tuple(range(-1, len(tokens) - 1)),
            scores=tuple(scores),
            sources=(frozenset((source,)),) * len(tokens),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """[nodes] distance to the root; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Length of the longest branch; 0 for the empty tree."""
        return max(self.depths, default=0)

    def children(self, node: int) -> dict[int, int]:
        """Token -> child node, for the children of `node` (-1 is the root)."""
        return {
            self.tokens[child]: child
            for child, parent in enumerate(self.parents)
            if parent == node
        }

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`; empty for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def keep(self, nodes: Iterable[int]) -> DraftTree:
        """The sub-tree of `nodes`, which must contain the parent of each of its nodes."""
        kept = sorted(nodes)
        new_index = {old: new for new, old in enumerate(kept)} | {ROOT: ROOT}
        return DraftTree(
            tokens=tuple(self.tokens[node] for node in kept),
            parents=tuple(new_index[self.parents[node]] for node in kept),
            scores=tuple(self.scores[node] for node in kept),
            sources=tuple(self.sources[node] for node in kept),
        )


EMPTY_TREE = DraftTree()
