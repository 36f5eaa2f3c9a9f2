"""Laws of draft trees and of merging them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.merge import merge_trees
from slipstream.speculation.tree import ROOT, DraftTree

Path = tuple[int, ...]


def draft_trees(max_nodes: int = 6) -> st.SearchStrategy[DraftTree]:
    """Small trees over few tokens, so that different trees share prefixes."""
    scores = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    nodes = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), scores), max_size=max_nodes)
    return st.builds(_build, nodes, st.sampled_from("abc"))


def _build(nodes: list[tuple[int, int, float]], source: str) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    kept_scores: list[float] = []
    for place, token, score in nodes:
        parent = place % (len(tokens) + 1) - 1
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
            kept_scores.append(score)
    sources = (frozenset({source}),) * len(tokens)
    return DraftTree(tuple(tokens), tuple(parents), tuple(kept_scores), sources)


def _paths(tree: DraftTree) -> list[Path]:
    return [tree.path_tokens(node) for node in range(len(tree))]


def _score_by_path(trees: Sequence[DraftTree]) -> dict[Path, float]:
    """Highest score of each path over all trees, lowered to its parent's."""
    scores: dict[Path, float] = {}
    for tree in trees:
        for path, score in zip(_paths(tree), tree.scores, strict=True):
            scores[path] = max(scores.get(path, 0.0), score)
    for path in sorted(scores, key=len):
        if len(path) > 1:
            scores[path] = min(scores[path], scores[path[:-1]])
    return scores


def _as_map(tree: DraftTree) -> dict[Path, tuple[float, frozenset[str]]]:
    return dict(zip(_paths(tree), zip(tree.scores, tree.sources, strict=True), strict=True))


tree_lists = st.lists(draft_trees(), max_size=3)
bounds = st.integers(0, 6)


@settings(deadline=None, max_examples=80)
@given(tree_lists, bounds, bounds)
def test_a_merged_tree_stays_within_its_bounds(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    merged = merge_trees(trees, max_nodes, max_len)
    assert len(merged) <= max_nodes
    assert merged.depth <= max_len


@settings(deadline=None, max_examples=80)
@given(tree_lists, bounds, bounds)
def test_every_merged_node_came_from_the_drafters_it_names(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    proposers: dict[Path, set[str]] = {}
    for tree in trees:
        for path, sources in zip(_paths(tree), tree.sources, strict=True):
            proposers.setdefault(path, set()).update(sources)
    merged = merge_trees(trees, max_nodes, max_len)
    for path, sources in zip(_paths(merged), merged.sources, strict=True):
        assert sources == proposers[path]


@settings(deadline=None, max_examples=80)
@given(tree_lists, bounds, bounds)
def test_no_merged_node_scores_more_than_its_parent(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    merged = merge_trees(trees, max_nodes, max_len)
    for score, parent in zip(merged.scores, merged.parents, strict=True):
        assert parent == ROOT or score <= merged.scores[parent]


@settings(deadline=None, max_examples=60)
@given(st.lists(draft_trees(max_nodes=4), max_size=2), st.integers(1, 4), st.integers(1, 4))
def test_no_other_choice_of_nodes_expects_more_accepted_tokens(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    scores = {path: s for path, s in _score_by_path(trees).items() if len(path) <= max_len}
    best = max(
        sum(scores[path] for path in chosen)
        for size in range(min(max_nodes, len(scores)) + 1)
        for chosen in combinations(scores, size)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    merged = merge_trees(trees, max_nodes, max_len)
    assert sum(merged.scores) == pytest.approx(best)


@settings(deadline=None, max_examples=80)
@given(tree_lists, bounds, bounds)
def test_the_likeliest_first_token_is_kept(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    first = {path: s for path, s in _score_by_path(trees).items() if len(path) == 1}
    merged = merge_trees(trees, max_nodes, max_len)
    if first and max_nodes and max_len:
        assert max(
            score
            for score, parent in zip(merged.scores, merged.parents, strict=True)
            if parent == ROOT
        ) == max(first.values())


@settings(deadline=None, max_examples=100)
@given(draft_trees())
def test_with_room_the_best_chain_of_a_tree_survives_whole(tree: DraftTree) -> None:
    other = DraftTree.chain([7, 7, 7], [0.0, 0.0, 0.0], "other")
    merged = merge_trees([tree, other], max_nodes=16, max_len=16)
    assert set(_paths(tree)) <= set(_paths(merged))


@settings(deadline=None, max_examples=80)
@given(tree_lists, bounds, bounds)
def test_merging_twice_changes_nothing(
    trees: list[DraftTree], max_nodes: int, max_len: int
) -> None:
    once = merge_trees(trees, max_nodes, max_len)
    assert merge_trees([once], max_nodes, max_len) == once
    assert _as_map(merge_trees([once, once], max_nodes, max_len)) == _as_map(once)


@settings(deadline=None, max_examples=80)
@given(st.lists(draft_trees(), min_size=2, max_size=3), st.integers(1, 2), bounds)
def test_the_order_of_the_drafters_does_not_matter(
    trees: list[DraftTree], num_moved: int, max_nodes: int
) -> None:
    one = merge_trees(trees, max_nodes, 6)
    other = merge_trees([*trees[num_moved:], *trees[:num_moved]], max_nodes, 6)
    assert _as_map(one) == _as_map(other)


@settings(deadline=None, max_examples=80)
@given(draft_trees(max_nodes=8))
def test_children_paths_and_depths_agree_with_the_parents(tree: DraftTree) -> None:
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        assert tree.child(parent, token) == node
        assert tree.path(node) == (*tree.path(parent), node)
        assert tree.depths[node] == len(tree.path(node))
    assert sum(len(tree.children(node)) for node in range(ROOT, len(tree))) == len(tree)


@settings(deadline=None, max_examples=100)
@given(draft_trees(max_nodes=8), st.data())
def test_keeping_a_closed_set_of_nodes_keeps_their_paths(
    tree: DraftTree, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(tree) - 1))) if tree else set()
    closed = {step for node in chosen for step in tree.path(node)}
    kept = tree.keep(closed)
    assert set(_paths(kept)) == {tree.path_tokens(node) for node in closed}
