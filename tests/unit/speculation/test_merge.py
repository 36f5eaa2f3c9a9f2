"""Merging the trees of several drafters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slipstream.speculation.merge import best_chain, merge_trees
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftLaw, DraftTree


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


def _drawn(tokens: list[int], scores: list[float]) -> DraftTree:
    laws = tuple(DraftLaw(np.array([token]), np.array([1.0])) for token in tokens)
    return replace(DraftTree.chain(tokens, scores, "net"), laws=laws)


def test_a_long_match_takes_the_whole_of_a_small_budget() -> None:
    match = DraftTree.chain([1, 2, 3, 4], [0.9, 0.85, 0.8, 0.75], "suffix")
    net = DraftTree((7, 8, 9), (ROOT, ROOT, 0), (0.6, 0.3, 0.4), (frozenset({"net"}),) * 3)
    assert merge_trees([net, match], 4, 8) == match
    assert _sources(merge_trees([net, match], 6, 8)) == {
        **{(1, 2, 3, 4)[:length]: {"suffix"} for length in range(1, 5)},
        (7,): {"net"},
        (7, 9): {"net"},
    }


def test_of_chains_the_one_that_promises_most_is_verified() -> None:
    match = DraftTree.chain([1, 2, 3], [0.9, 0.8, 0.7], "suffix")
    assert best_chain([_drawn([7, 8], [0.7, 0.5]), match], 3) is match
    sure = _drawn([7, 8], [0.95, 0.9])
    assert best_chain([match, sure], 3) is sure
    assert best_chain([], 3) == best_chain([EMPTY_TREE], 3) == EMPTY_TREE


def test_a_drawn_chain_is_chosen_by_what_was_known_before_the_draws() -> None:
    match = DraftTree.chain([1, 2, 3], [0.6, 0.4, 0.3], "suffix")
    for later in (0.01, 0.69):
        drawn = _drawn([7, 8, 9], [0.7, later, later])
        assert best_chain([match, drawn], 3) is drawn


def test_of_a_tree_the_branch_with_the_most_expected_tokens_is_the_chain() -> None:
    sources = (frozenset({"suffix"}),) * 5
    tree = DraftTree((1, 2, 3, 4, 5), (-1, -1, 1, 2, 0), (0.5, 0.4, 0.39, 0.38, 0.2), sources)
    assert best_chain([tree], 8).tokens == (2, 3, 4)
    assert best_chain([tree], 1).tokens == (1,)
    assert best_chain([_drawn([7, 8, 9], [0.9, 0.8, 0.7])], 2).tokens == (7, 8)
