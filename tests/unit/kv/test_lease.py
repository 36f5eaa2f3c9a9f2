"""A lease: reserve rows, commit the kept ones, compact a tree, roll back, publish, close."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kv.cache import KvCache, Lease, OutOfPages

PAGE_SIZE = 4


def small_cache(num_pages: int = 8, *, prefix_cache: bool = True) -> KvCache:
    return KvCache(num_pages, PAGE_SIZE, prefix_cache=prefix_cache)


def open_with_rows(cache: KvCache, name: str, tokens: list[int], salt: str = "") -> Lease:
    lease = cache.open(name, tokens, salt)
    count = len(tokens) - lease.num_tokens
    lease.reserve(count)
    lease.commit(count)
    return lease


def test_rows_lie_in_order_within_their_pages() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(6)
    first, second = lease.pages
    expected = [first * 4 + offset for offset in range(4)] + [second * 4, second * 4 + 1]
    assert lease.slots(0, 6).tolist() == expected
    assert lease.slots(3, 5).tolist() == expected[3:5]
    assert lease.slot_table().tolist() == expected
    assert lease.slot_table().dtype == np.int64


def test_no_row_ever_lies_in_the_scratch_page() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(32)
    assert lease.slot_table().min() >= PAGE_SIZE


def test_slots_beyond_the_reserved_rows_are_refused() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(2)
    with pytest.raises(ValueError, match=r"rows 0\.\.3 are not within"):
        lease.slots(0, 3)


def test_reserving_again_replaces_the_count() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(6)
    lease.reserve(2)
    assert lease.num_reserved == 2
    assert len(lease.slot_table()) == 2


def test_committing_some_rows_leaves_the_others_reserved() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(5)
    lease.commit(3)
    assert (lease.num_tokens, lease.num_reserved) == (3, 2)


def test_more_than_the_reserved_rows_cannot_be_committed() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(1)
    with pytest.raises(ValueError, match="cannot commit 2 of 1 reserved rows"):
        lease.commit(2)


def test_rollback_gives_back_the_pages_that_only_reserved_rows_needed() -> None:
    cache = small_cache()
    lease = cache.open("a", [1], "")
    lease.reserve(12)
    lease.commit(5)
    lease.rollback()
    assert len(lease.pages) == 2
    assert (lease.num_tokens, lease.num_reserved) == (5, 0)
    assert cache.usage().num_free == 6
    cache.check_integrity()


def test_rows_after_a_rollback_lie_in_the_new_pages() -> None:
    cache = small_cache()
    lease = cache.open("a", [1], "")
    lease.reserve(9)
    lease.commit(4)
    lease.rollback()
    other = cache.open("b", [1], "")
    other.reserve(1)
    lease.reserve(5)
    assert not set(lease.slot_table().tolist()) & set(other.slot_table().tolist())
    cache.check_integrity()


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    cache = small_cache(num_pages=2)
    lease = cache.open("a", [1], "")
    lease.reserve(3)
    with pytest.raises(OutOfPages, match="2 more KV pages are needed, but of 2 pages only 1 are"):
        lease.reserve(9)
    assert (lease.num_reserved, len(lease.pages)) == (3, 1)
    cache.check_integrity()


def test_a_reservation_evicts_cached_pages_only_as_far_as_needed() -> None:
    cache = small_cache(num_pages=4)
    open_with_rows(cache, "a", list(range(12))).close(list(range(12)))
    lease = cache.open("b", [99], "")
    lease.reserve(8)
    assert cache.usage().num_evictable == 2
    cache.check_integrity()


def test_an_impossible_reservation_evicts_nothing() -> None:
    cache = small_cache(num_pages=4)
    open_with_rows(cache, "a", list(range(12))).close(list(range(12)))
    with pytest.raises(OutOfPages):
        cache.open("b", [99], "").reserve(17)
    assert cache.usage().num_evictable == 3


def test_a_kept_chain_needs_no_copy() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(5)
    assert len(lease.compact([0, 1, 2])) == 0
    assert len(lease.compact([])) == 0


def test_compacting_a_tree_copies_only_the_rows_behind_a_gap() -> None:
    lease = open_with_rows(small_cache(), "a", [1, 2, 3])
    lease.reserve(6)
    slots = lease.slots(3, 9).tolist()
    moves = lease.compact([0, 1, 3, 5])
    assert moves.sources.tolist() == [slots[3], slots[5]]
    assert moves.targets.tolist() == [slots[2], slots[3]]


def test_copying_in_order_never_overwrites_an_unread_source() -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(8)
    storage = {slot: row for row, slot in enumerate(lease.slot_table().tolist())}
    kept = [0, 2, 3, 5, 7]
    moves = lease.compact(kept)
    for source, target in zip(moves.sources.tolist(), moves.targets.tolist(), strict=True):
        storage[target] = storage[source]
    lease.commit(len(kept))
    assert [storage[slot] for slot in lease.slots(0, 5).tolist()] == kept


@pytest.mark.parametrize("kept", [[1, 0], [0, 0], [-1, 0], [0, 4]])
def test_kept_rows_that_do_not_ascend_within_the_reserved_are_refused(kept: list[int]) -> None:
    lease = small_cache().open("a", [1], "")
    lease.reserve(4)
    with pytest.raises(ValueError, match="must ascend within the 4 reserved"):
        lease.compact(kept)


def test_published_pages_are_shared_while_the_lease_is_open() -> None:
    cache = small_cache()
    tokens = list(range(10))
    first = open_with_rows(cache, "a", tokens)
    first.publish(tokens)
    second = cache.open("b", tokens, "")
    assert second.num_cached == second.num_tokens == 8
    assert second.pages == first.pages[:2]
    assert cache.usage().num_leased == 3
    cache.check_integrity()


def test_a_second_publisher_of_the_same_tokens_changes_over_to_the_shared_pages() -> None:
    cache = small_cache()
    tokens = list(range(9))
    first, second = open_with_rows(cache, "a", tokens), open_with_rows(cache, "b", tokens)
    first.publish(tokens)
    second.publish(tokens)
    assert second.pages[:2] == first.pages[:2]
    assert second.slots(0, 8).tolist() == first.slots(0, 8).tolist()
    assert cache.usage().num_free == 8 - 4
    cache.check_integrity()


def test_a_second_publisher_keeps_its_own_pages_where_the_tokens_differ() -> None:
    cache = small_cache()
    first = open_with_rows(cache, "a", [0, 1, 2, 3, 4, 5, 6, 7])
    second = open_with_rows(cache, "b", [0, 1, 2, 3, 9, 9, 9, 9])
    own = second.pages[1]
    first.publish([0, 1, 2, 3, 4, 5, 6, 7])
    second.publish([0, 1, 2, 3, 9, 9, 9, 9])
    assert second.pages == (first.pages[0], own)
    cache.check_integrity()


def test_publishing_goes_on_where_it_stopped() -> None:
    cache = small_cache()
    tokens = list(range(12))
    lease = open_with_rows(cache, "a", tokens[:5])
    lease.publish(tokens)
    assert lease.num_published == 4
    lease.reserve(7)
    lease.commit(7)
    lease.publish(tokens)
    assert lease.num_published == 12
    assert cache.usage().num_cached == 3
    cache.check_integrity()


def test_reserved_rows_are_not_published() -> None:
    cache = small_cache()
    lease = cache.open("a", [1], "")
    lease.reserve(8)
    lease.commit(3)
    lease.publish(list(range(8)))
    assert cache.usage().num_cached == 0


def test_closing_caches_full_pages_and_frees_the_rest() -> None:
    cache = small_cache()
    lease = open_with_rows(cache, "a", list(range(10)))
    lease.close(list(range(10)))
    usage = cache.usage()
    assert (usage.num_evictable, usage.num_free, usage.num_leased) == (2, 6, 0)
    cache.check_integrity()


def test_closing_with_fewer_tokens_does_not_cache_the_rows_behind_them() -> None:
    cache = small_cache()
    open_with_rows(cache, "a", list(range(10))).close(list(range(7)))
    assert cache.usage().num_evictable == 1
    cache.check_integrity()


def test_closing_without_tokens_frees_everything() -> None:
    cache = small_cache()
    open_with_rows(cache, "a", list(range(10))).close(None)
    assert cache.usage().num_free == 8
    cache.check_integrity()


def test_closing_with_rows_still_reserved_loses_no_page() -> None:
    cache = small_cache()
    lease = open_with_rows(cache, "a", list(range(6)))
    lease.reserve(9)
    lease.close(list(range(6)))
    assert (cache.usage().num_evictable, cache.usage().num_free) == (1, 7)
    cache.check_integrity()


def test_a_closed_lease_refuses_to_be_used() -> None:
    lease = small_cache().open("a", [1], "")
    lease.close(None)
    with pytest.raises(ValueError, match="lease of request a is closed"):
        lease.reserve(1)
    with pytest.raises(ValueError, match="lease of request a is closed"):
        lease.close(None)


def test_without_prefix_cache_nothing_is_kept_or_shared() -> None:
    cache = small_cache(prefix_cache=False)
    tokens = list(range(9))
    lease = open_with_rows(cache, "a", tokens)
    lease.publish(tokens)
    assert cache.open("b", tokens, "").num_cached == 0
    lease.close(tokens)
    assert cache.usage().num_free == 8
    cache.check_integrity()
