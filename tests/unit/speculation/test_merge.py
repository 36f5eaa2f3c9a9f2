"""Merging the trees of several drafters."""

from __future__ import annotations

from slipstream.speculation.merge import merge_trees
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree


def _sources(tree: DraftTree) -> dict[tuple[int, ...], set[str]]:
    return {tree.path_tokens(node): set(tree.sources[node]) for node in range(len(tree))}


def test_equal_prefixes_become_one_node_with_both_sources() -> None:
    left = DraftTree.chain([1, 2, 3], [0.9, 0.8, 0.7], "a")
    right = DraftTree.chain([1, 2, 4], [0.9, 0.8, 0.6], "b")
    merged = merge_trees([left, right], max_nodes=8, max_len=8)
    assert _sources(merged) == {
        (1,): {"a", "b"},
        (1, 2): {"a", "b"},
        (1, 2, 3): {"a"},
        (1, 2, 4): {"b"},
    }


def test_a_shared_node_keeps_the_higher_score() -> None:
    left = DraftTree.chain([1], [0.3], "a")
    right = DraftTree.chain([1], [0.6], "b")
    assert merge_trees([left, right], 8, 8).scores == (0.6,)


def test_a_score_is_lowered_to_its_parents() -> None:
    tree = DraftTree.chain([1, 2], [0.4, 0.9], "a")
    assert merge_trees([tree], 8, 8).scores == (0.4, 0.4)


def test_the_likeliest_nodes_get_the_budget() -> None:
    sure = DraftTree.chain([1, 2, 3], [0.9, 0.8, 0.2], "a")
    other = DraftTree.chain([7, 8], [0.5, 0.1], "b")
    merged = merge_trees([sure, other], max_nodes=3, max_len=8)
    assert set(_sources(merged)) == {(1,), (1, 2), (7,)}


def test_branches_are_cut_at_the_longest_length() -> None:
    tree = DraftTree.chain([1, 2, 3], [0.9, 0.8, 0.7], "a")
    assert merge_trees([tree], max_nodes=8, max_len=2).tokens == (1, 2)


def test_a_tree_alone_within_the_bounds_comes_back_as_it_is() -> None:
    tree = DraftTree((7, 1), (ROOT, ROOT), (0.2, 0.9), (frozenset({"a"}),) * 2)
    assert merge_trees([EMPTY_TREE, tree], 8, 8) is tree


def test_nothing_to_merge_or_no_room_gives_the_empty_tree() -> None:
    tree = DraftTree.chain([1], [0.5], "a")
    assert merge_trees([], 8, 8) == EMPTY_TREE
    assert merge_trees([EMPTY_TREE, EMPTY_TREE], 8, 8) == EMPTY_TREE
    assert merge_trees([tree], 0, 8) == EMPTY_TREE
    assert merge_trees([tree], 8, 0) == EMPTY_TREE
