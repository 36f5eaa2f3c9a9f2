"""The prefix tree: whole pages, separate salts, least recently used leaves go first."""

from __future__ import annotations

import pytest

from slipstream.kv.radix import RadixNode, RadixTree


def insert(tree: RadixTree, tokens: list[int], pages: list[int], salt: str = "") -> RadixNode:
    node = tree.insert(salt, tokens, pages).node
    assert node is not None
    return node


def test_a_match_covers_whole_pages_only() -> None:
    tree = RadixTree(page_size=2)
    insert(tree, [1, 2, 3, 4], [10, 11])
    assert tree.match("", [1, 2, 3, 4, 5]).pages == [10, 11]
    assert tree.match("", [1, 2, 3]).pages == [10]
    assert tree.match("", [1]).pages == []
    assert tree.match("", [9, 2, 3, 4]).node is None


def test_salts_never_share() -> None:
    tree = RadixTree(page_size=2)
    insert(tree, [1, 2], [10], salt="a")
    assert tree.match("b", [1, 2]).pages == []
    insert(tree, [1, 2], [20], salt="b")
    assert tree.match("a", [1, 2]).pages == [10]
    assert tree.match("b", [1, 2]).pages == [20]


def test_tokens_already_there_keep_the_trees_page() -> None:
    tree = RadixTree(page_size=2)
    insert(tree, [1, 2, 3, 4], [10, 11])
    again = tree.insert("", [1, 2, 5, 6], [20, 21])
    assert again.pages == [10, 21]
    assert again.adopted == [21]
    assert tree.num_pages == 3


def test_a_path_continues_below_a_given_node() -> None:
    tree = RadixTree(page_size=1)
    top = insert(tree, [1, 2], [10, 11])
    tree.lock(top)
    tree.insert("", [3], [12], below=top)
    assert tree.match("", [1, 2, 3]).pages == [10, 11, 12]


def test_pages_and_tokens_must_fit_each_other() -> None:
    with pytest.raises(ValueError, match="2 pages of 2 need 4 tokens, got 3"):
        RadixTree(page_size=2).insert("", [1, 2, 3], [10, 11])


def test_inserting_nothing_changes_nothing() -> None:
    tree = RadixTree(page_size=2)
    assert tree.insert("a", [], []).node is None
    assert tree.num_pages == 0


def test_leaves_are_evicted_before_their_parents() -> None:
    tree = RadixTree(page_size=1)
    insert(tree, [1, 2, 3], [10, 11, 12])
    assert tree.evict(2) == [12, 11]
    assert tree.match("", [1, 2, 3]).pages == [10]


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    tree = RadixTree(page_size=1)
    old = insert(tree, [1], [10])
    insert(tree, [2], [20])
    insert(tree, [3], [30])
    tree.lock(old)
    tree.unlock(old)
    assert tree.evict(3) == [20, 30, 10]


def test_a_lock_protects_the_whole_path() -> None:
    tree = RadixTree(page_size=1)
    insert(tree, [1, 2, 3], [10, 11, 12])
    middle = tree.match("", [1, 2]).node
    assert middle is not None
    tree.lock(middle)
    assert tree.num_evictable == 1
    assert tree.evict(3) == [12]
    tree.unlock(middle)
    assert tree.evict(3) == [11, 10]


def test_locks_are_counted() -> None:
    tree = RadixTree(page_size=1)
    node = insert(tree, [1], [10])
    tree.lock(node)
    tree.lock(node)
    tree.unlock(node)
    assert tree.evict(1) == []
    tree.unlock(node)
    assert tree.evict(1) == [10]


def test_a_lock_can_be_extended_downwards_and_given_back_at_once() -> None:
    tree = RadixTree(page_size=1)
    top = insert(tree, [1], [10])
    tree.lock(top)
    bottom = tree.insert("", [2], [11], below=top).node
    assert bottom is not None
    tree.lock(bottom, below=top)
    assert tree.num_evictable == 0
    tree.unlock(bottom)
    assert tree.num_evictable == 2


def test_unlocking_an_unlocked_node_is_refused() -> None:
    tree = RadixTree(page_size=1)
    with pytest.raises(ValueError, match="page 10 is not locked"):
        tree.unlock(insert(tree, [1], [10]))


def test_an_evicted_path_can_be_inserted_again() -> None:
    tree = RadixTree(page_size=1)
    insert(tree, [1], [10], salt="a")
    assert tree.evict(5) == [10]
    insert(tree, [1], [11], salt="a")
    assert tree.match("a", [1]).pages == [11]


def test_using_one_leaf_many_times_does_not_grow_the_eviction_queue() -> None:
    tree = RadixTree(page_size=1)
    node = insert(tree, [1], [10])
    for _ in range(1000):
        tree.lock(node)
        tree.unlock(node)
    assert tree.num_queued <= 2 * tree.num_pages + 65
    assert tree.evict(2) == [10]
