"""The cache over its leases: prefix hits, eviction, usage, preemption, integrity."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slipstream.kv.cache import KvCache, Lease

PAGE_SIZE = 4


def fill(lease: Lease, num_tokens: int) -> Lease:
    lease.reserve(num_tokens - lease.num_tokens)
    lease.commit(num_tokens - lease.num_tokens)
    return lease


def cache_knowing(tokens: list[int], num_pages: int = 8, salt: str = "") -> KvCache:
    cache = KvCache(num_pages, PAGE_SIZE)
    fill(cache.open("first", tokens, salt), len(tokens)).close(tokens)
    return cache


def test_a_hit_is_whole_pages_and_never_the_last_token() -> None:
    cache = cache_knowing(list(range(8)))
    assert cache.open("same", list(range(8)), "").num_cached == 4
    assert cache.open("longer", list(range(9)), "").num_cached == 8
    assert cache.open("shorter", list(range(3)), "").num_cached == 0


def test_tenants_never_share_a_prefix() -> None:
    cache = cache_knowing(list(range(8)), salt="tenant-a")
    assert cache.open("b", list(range(9)), "tenant-b").num_cached == 0
    assert cache.open("a", list(range(9)), "tenant-a").num_cached == 8


def test_a_request_can_bypass_the_prefix_cache() -> None:
    cache = cache_knowing(list(range(8)))
    lease = cache.open("b", list(range(9)), "", use_prefix=False)
    assert lease.num_cached == 0
    assert cache.usage().num_hit_tokens == 0


def test_a_prefix_in_use_is_not_evicted() -> None:
    cache = cache_knowing(list(range(16)))
    lease = cache.open("b", list(range(9)), "")
    assert cache.evict(8) == 2
    assert cache.usage().num_leased == 2
    lease.close(None)
    assert cache.evict(8) == 2
    cache.check_integrity()


def test_the_prefix_released_last_is_evicted_last() -> None:
    cache = cache_knowing([1, 1, 1, 1])
    fill(cache.open("b", [2, 2, 2, 2], ""), 4).close([2, 2, 2, 2])
    cache.open("c", [1, 1, 1, 1, 1], "").close(None)
    cache.evict(1)
    assert cache.open("d", [1, 1, 1, 1, 1], "").num_cached == 4
    assert cache.open("e", [2, 2, 2, 2, 2], "").num_cached == 0


def test_a_preempted_request_finds_its_pages_again() -> None:
    cache = KvCache(8, PAGE_SIZE)
    tokens = list(range(11))
    fill(cache.open("a", tokens, ""), 10).close(tokens[:10])
    again = cache.open("a", tokens, "")
    assert again.num_cached == 8


def test_choices_of_one_prompt_share_its_pages() -> None:
    cache = KvCache(8, PAGE_SIZE)
    prompt = list(range(9))
    fill(cache.open("a-0", prompt, ""), 9).publish(prompt)
    for choice in range(1, 4):
        fill(cache.open(f"a-{choice}", prompt, ""), 9)
    assert cache.usage().num_leased == 2 + 4
    cache.check_integrity()


def test_two_leases_of_one_request_are_refused() -> None:
    cache = KvCache(8, PAGE_SIZE)
    cache.open("a", [1], "")
    with pytest.raises(ValueError, match="request a already has an open lease"):
        cache.open("a", [1], "")


def test_usage_accounts_for_every_page() -> None:
    cache = cache_knowing(list(range(8)))
    fill(cache.open("b", list(range(6)), ""), 6)
    usage = cache.usage()
    assert (usage.num_free, usage.num_evictable, usage.num_leased) == (5, 1, 2)
    assert usage.num_free + usage.num_evictable + usage.num_leased == usage.num_pages == 8
    assert usage.num_leases == 1
    assert usage.pressure == 0.25


def test_usage_counts_hits_in_tokens() -> None:
    cache = cache_knowing(list(range(8)))
    cache.open("b", list(range(9)), "")
    usage = cache.usage()
    assert (usage.num_queried_tokens, usage.num_hit_tokens) == (17, 8)


def test_room_for_a_new_request_includes_what_can_be_evicted() -> None:
    cache = cache_knowing(list(range(8)), num_pages=4)
    assert cache.can_reserve(16)
    assert not cache.can_reserve(17)
    fill(cache.open("b", list(range(5)), ""), 5)
    assert cache.can_reserve(8)
    assert not cache.can_reserve(9)


def test_a_reset_forgets_all_pages_that_no_lease_uses() -> None:
    cache = cache_knowing(list(range(16)))
    lease = cache.open("b", list(range(5)), "")
    assert cache.reset_prefix_cache() == 3
    assert cache.usage().num_cached == 1
    lease.close(None)
    assert cache.reset_prefix_cache() == 1
    assert cache.usage().num_free == 8


def test_storage_needs_one_scratch_page_more_than_can_be_leased() -> None:
    assert KvCache(8, PAGE_SIZE).num_slots == 36


def test_integrity_names_a_page_that_was_lost() -> None:
    cache = KvCache(2, PAGE_SIZE)
    lease = cache.open("a", [1], "")
    lease.reserve(1)
    lease._pages.clear()
    lease._num_reserved = 0
    with pytest.raises(AssertionError, match="page 1 counts 1 holders, has 0"):
        cache.check_integrity()


def test_integrity_names_a_page_that_is_leased_but_not_locked() -> None:
    cache = cache_knowing(list(range(4)))
    lease = cache.open("b", list(range(5)), "")
    assert lease.node is not None
    lease.node.num_locks = 0
    with pytest.raises(AssertionError, match="counts 0 locks, 1 leases lock it and 1 hold it"):
        cache.check_integrity()


def test_the_bookkeeping_does_not_import_torch() -> None:
    code = "import sys, slipstream.kv.cache, slipstream.kv.budget; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
