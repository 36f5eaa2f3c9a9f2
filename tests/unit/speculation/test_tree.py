"""The draft tree: what is accepted as one, and how it is read."""

from __future__ import annotations

import pickle

import pytest

from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree

#            root
#           /    \
#    (0) 10        (1) 20
#      /    \
#  (2) 11   (3) 12
#     |
#  (4) 13
BUSH = DraftTree(
    tokens=(10, 20, 11, 12, 13),
    parents=(ROOT, ROOT, 0, 0, 2),
    scores=(0.9, 0.5, 0.8, 0.4, 0.7),
    sources=(frozenset({"a"}),) * 5,
)


def test_a_chain_has_one_branch_with_its_scores_and_source() -> None:
    chain = DraftTree.chain([5, 6, 7], [0.9, 0.8, 0.7], "ngram")
    assert chain.parents == (ROOT, 0, 1)
    assert chain.sources == (frozenset({"ngram"}),) * 3
    assert chain.is_chain
    assert not BUSH.is_chain


def test_depths_count_from_the_root() -> None:
    assert BUSH.depths == (1, 1, 2, 2, 3)
    assert BUSH.depth == 3
    assert EMPTY_TREE.depth == 0


def test_children_map_tokens_to_nodes() -> None:
    assert BUSH.children(ROOT) == {10: 0, 20: 1}
    assert BUSH.children(0) == {11: 2, 12: 3}
    assert BUSH.children(4) == {}
    assert BUSH.child(0, 12) == 3
    assert BUSH.child(0, 10) is None
    assert BUSH.child(4, 10) is None


def test_a_path_lists_nodes_and_tokens_from_the_root_down() -> None:
    assert BUSH.path(4) == (0, 2, 4)
    assert BUSH.path_tokens(4) == (10, 11, 13)
    assert BUSH.path(ROOT) == ()


def test_a_kept_sub_tree_renumbers_its_parents() -> None:
    kept = BUSH.keep([4, 0, 2])
    assert kept.tokens == (10, 11, 13)
    assert kept.parents == (ROOT, 0, 1)
    assert kept.scores == (0.9, 0.8, 0.7)


def test_the_empty_tree_is_false_and_a_drafted_one_true() -> None:
    assert not EMPTY_TREE
    assert BUSH


def test_trees_compare_hash_and_travel_by_value() -> None:
    again = pickle.loads(pickle.dumps(BUSH))
    assert again == BUSH
    assert hash(again) == hash(BUSH)
    assert again.children(0) == BUSH.children(0)


@pytest.mark.parametrize(
    ("tokens", "parents", "scores", "complaint"),
    [
        ((1, 2), (ROOT,), (0.5, 0.5), "arrays of one length"),
        ((1, 2), (1, ROOT), (0.5, 0.5), "node 0 has parent 1"),
        ((1,), (0,), (0.5,), "node 0 has parent 0"),
        ((1,), (-2,), (0.5,), "node 0 has parent -2"),
        ((1, 1), (ROOT, ROOT), (0.5, 0.5), "node 1 repeats token 1"),
        ((-1,), (ROOT,), (0.5,), "token -1"),
        ((1,), (ROOT,), (1.5,), "score 1.5"),
        ((1,), (ROOT,), (float("nan"),), "score nan"),
    ],
)
def test_arrays_that_form_no_tree_are_refused(
    tokens: tuple[int, ...],
    parents: tuple[int, ...],
    scores: tuple[float, ...],
    complaint: str,
) -> None:
    sources = (frozenset({"a"}),) * len(tokens)
    with pytest.raises(ValueError, match=complaint):
        DraftTree(tokens, parents, scores, sources)


def test_the_same_token_may_stand_below_different_parents() -> None:
    tree = DraftTree((1, 1, 1), (ROOT, 0, 1), (0.5,) * 3, (frozenset({"a"}),) * 3)
    assert tree.path_tokens(2) == (1, 1, 1)
