"""The draft as data: what a drafter proposes and the target verifies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

ROOT = -1

_NO_CHILDREN: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class DraftLaw:
    """What a proposed token was drawn from.

    Attributes:
        token_ids: [n] int64 target ids that could have been drawn, ascending.
        probs: [n] their probabilities; they sum to 1.
    """

    token_ids: npt.NDArray[np.int64]
    probs: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Proposed tokens as a tree below the anchor; the root itself is not a node.

    Nodes are in topological order (a parent comes before its children), and siblings carry
    different tokens. Building one costs O(nodes); every look-up below is O(1) or O(depth).

    Attributes:
        tokens: [nodes] proposed token ids.
        parents: [nodes] index of the parent node, or -1 for the root.
        scores: [nodes] estimated probability that the node is accepted, in [0, 1].
        sources: [nodes] names of the drafters that proposed the node.
        laws: [nodes] what each token was drawn from, behind its path; None where the tokens were
            not drawn but follow from the text.
        depths: [nodes] distance to the root; a child of the root has depth 1. Derived.

    Raises:
        ValueError: The arrays do not form such a tree.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    sources: tuple[frozenset[str], ...] = ()
    laws: tuple[DraftLaw, ...] | None = field(default=None, repr=False, compare=False)
    depths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _children: Mapping[int, dict[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        num_nodes = len(self.tokens)
        if not len(self.parents) == len(self.scores) == len(self.sources) == num_nodes:
            raise ValueError(
                f"a draft tree needs arrays of one length, got tokens {num_nodes}, parents "
                f"{len(self.parents)}, scores {len(self.scores)}, sources {len(self.sources)}"
            )
        if self.laws is not None and len(self.laws) != num_nodes:
            raise ValueError(f"a draft tree of {num_nodes} nodes has {len(self.laws)} laws")
        depths: list[int] = []
        children: dict[int, dict[int, int]] = {}
        nodes = zip(self.tokens, self.parents, self.scores, strict=True)
        for node, (token, parent, score) in enumerate(nodes):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents must come first")
            siblings = children.get(parent)
            if siblings is None:
                children[parent] = {token: node}
            elif token in siblings:
                raise ValueError(f"node {node} repeats token {token} below parent {parent}")
            else:
                siblings[token] = node
            if token < 0 or not 0.0 <= score <= 1.0:
                raise ValueError(f"node {node} has token {token} and score {score}")
            depths.append(1 if parent < 0 else depths[parent] + 1)
        object.__setattr__(self, "depths", tuple(depths))
        object.__setattr__(self, "_children", children)

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
    def depth(self) -> int:
        """Length of the longest branch; 0 for the empty tree."""
        return max(self.depths, default=0)

    @property
    def is_chain(self) -> bool:
        """Whether the tree has at most one branch."""
        return self.depth == len(self.tokens)

    def children(self, node: int) -> Mapping[int, int]:
        """Token -> child node, for the children of `node` (-1 is the root); not to be changed."""
        return self._children.get(node, _NO_CHILDREN)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (-1 is the root) that carries `token`, if there is one."""
        return self._children.get(node, _NO_CHILDREN).get(token)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`; empty for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Tokens from the root's child down to `node`; empty for the root."""
        return tuple(self.tokens[step] for step in self.path(node))

    def keep(self, nodes: Iterable[int]) -> DraftTree:
        """The sub-tree of `nodes`, which must contain the parent of each of its nodes."""
        kept = sorted(nodes)
        new_index = {old: new for new, old in enumerate(kept)} | {ROOT: ROOT}
        return DraftTree(
            tokens=tuple(self.tokens[node] for node in kept),
            parents=tuple(new_index[self.parents[node]] for node in kept),
            scores=tuple(self.scores[node] for node in kept),
            sources=tuple(self.sources[node] for node in kept),
            laws=None if self.laws is None else tuple(self.laws[node] for node in kept),
        )


EMPTY_TREE = DraftTree()
