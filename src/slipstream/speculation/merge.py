"""One tree from several drafters' trees, the nodes most likely to be accepted first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree


@dataclass(slots=True)
class _Node:
    """A token sequence that at least one tree proposes."""

    score: float = 0.0
    sources: frozenset[str] = frozenset()
    children: dict[int, _Node] = field(default_factory=dict)


def merge_trees(trees: Sequence[DraftTree], max_nodes: int, max_len: int) -> DraftTree:
    """The union of `trees`, cut to the nodes that are likeliest to be accepted.

    Equal token sequences become one node with all their sources and the highest of their scores:
    drafters that read the same text are no independent witnesses, and merging a tree with itself
    must change nothing. A node's score is lowered to its parent's, which it cannot exceed. Then
    nodes are taken best score first, so the kept ones have the greatest possible sum of scores,
    that is of tokens expected to be accepted. Of equal scores the shallower goes first, then the
    one whose parent went first, then the lower token id: the order of `trees` does not matter.

    Args:
        max_nodes, max_len: Most nodes, and most nodes in one branch; at least 0.
    """
    trees = [tree for tree in trees if tree]
    if not trees or max_nodes < 1 or max_len < 1:
        return EMPTY_TREE
    if len(trees) == 1 and _fits(trees[0], max_nodes, max_len):
        return trees[0]
    return _best_nodes(_union(trees), max_nodes, max_len)


def best_chain(trees: Sequence[DraftTree], max_len: int) -> DraftTree:
    """The one chain that promises most tokens, for verification by rejection.

    Of a tree that was not drawn, the branch with the most expected tokens stands. A drawn chain is
    judged by its first score alone, as if all were like it: later ones depend on what was drawn
    in front of them, and a choice that knew the draws would bend the law of the answer.

    Args:
        max_len: Most nodes of the chain.
    """
    chains = [_chain_of(tree, max_len) for tree in trees if tree]
    if not chains or max_len < 1:
        return EMPTY_TREE
    return max(chains, key=lambda chain: _promise(chain, max_len))


def _chain_of(tree: DraftTree, max_len: int) -> DraftTree:
    if tree.is_chain:
        return tree if len(tree) <= max_len else tree.keep(range(max_len))
    expected: list[float] = []
    for node, parent in enumerate(tree.parents):
        before = expected[parent] if parent != ROOT else 0.0
        expected.append(before + (tree.scores[node] if tree.depths[node] <= max_len else 0.0))
    best = max(range(len(tree)), key=expected.__getitem__)
    return tree.keep(tree.path(best)[:max_len])


def _promise(chain: DraftTree, max_len: int) -> float:
    """Expected accepted tokens."""
    if chain.laws is None:
        return sum(chain.scores)
    first = chain.scores[0]
    return sum(first**depth for depth in range(1, max_len + 1))


def _fits(tree: DraftTree, max_nodes: int, max_len: int) -> bool:
    scores = tree.scores
    return (
        len(tree) <= max_nodes
        and tree.depth <= max_len
        and all(
            parent == ROOT or score <= scores[parent]
            for score, parent in zip(scores, tree.parents, strict=True)
        )
    )


def _union(trees: Sequence[DraftTree]) -> _Node:
    root = _Node(score=1.0)
    for tree in trees:
        nodes: list[_Node] = []
        for token, parent, score, sources in zip(
            tree.tokens, tree.parents, tree.scores, tree.sources, strict=True
        ):
            siblings = (root if parent == ROOT else nodes[parent]).children
            node = siblings.get(token)
            if node is None:
                node = siblings[token] = _Node(score, sources)
            else:
                node.score = max(node.score, score)
                node.sources = node.sources | sources
            nodes.append(node)
    return root


def _best_nodes(root: _Node, max_nodes: int, max_len: int) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    sources: list[frozenset[str]] = []
    # Below one parent tokens differ, so the comparison never reaches the node itself.
    heap = [(-node.score, 1, ROOT, token, node) for token, node in root.children.items()]
    heapq.heapify(heap)
    while heap and len(tokens) < max_nodes:
        negative_score, depth, parent, token, node = heapq.heappop(heap)
        index = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(-negative_score)
        sources.append(node.sources)
        if depth < max_len:
            for child_token, child in node.children.items():
                item = (max(-child.score, negative_score), depth + 1, index, child_token, child)
                heapq.heappush(heap, item)
    return DraftTree(tuple(tokens), tuple(parents), tuple(scores), tuple(sources))
