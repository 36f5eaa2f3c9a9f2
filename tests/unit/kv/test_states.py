"""States of recurrent layers: who holds them, when snapshots are taken, what gives way."""

from __future__ import annotations

import pytest

from slipstream.kv.cache import KvCache, Lease
from slipstream.kv.states import EMPTY_STATE, OutOfStates, StatePool, StateUsage

TOKENS = list(range(100, 164))


def make_cache(num_states: int = 8, *, interval: int = 8) -> KvCache:
    return KvCache(64, 4, states=StatePool(num_states, interval, max_drafts=4))


def compute(lease: Lease, count: int, *, num_drafts: int = 0, num_kept: int = 0) -> None:
    """A pass over `count` known rows and drafts of which `num_kept` stay."""
    lease.reserve(count + num_drafts)
    lease.span(0, count, num_drafts, ends_prompt=count > 1)
    lease.commit(count + num_kept)
    lease.rollback()


def states_of(cache: KvCache) -> StatePool:
    assert cache.states is not None
    return cache.states


def test_a_new_text_starts_from_the_empty_state_and_goes_on_from_its_own() -> None:
    cache = make_cache()
    lease = cache.open("a", TOKENS, "")
    lease.reserve(3)
    first = lease.span(5, 3)
    lease.commit(3)
    lease.reserve(1)
    second = lease.span(0, 1)

    assert first is not None
    assert second is not None
    assert (first.source, first.first_row, first.num_known) == (EMPTY_STATE, 5, 3)
    assert second.source == second.target == first.target != EMPTY_STATE


def test_draft_rows_that_stayed_are_taken_in_by_the_next_pass() -> None:
    lease = make_cache().open("a", TOKENS, "")
    compute(lease, 3)
    compute(lease, 1, num_drafts=4, num_kept=2)
    lease.reserve(1)
    span = lease.span(0, 1)

    assert span is not None
    assert span.num_kept == 2


def test_snapshots_stand_at_the_interval_and_in_front_of_the_prompts_last_token() -> None:
    lease = make_cache().open("a", TOKENS, "")
    lease.reserve(29)
    span = lease.span(0, 29, ends_prompt=True)

    assert span is not None
    assert [count for count, _ in span.snapshots] == [8, 16, 24, 28]


def test_a_prefix_is_shared_up_to_its_deepest_snapshot_and_no_further() -> None:
    cache = make_cache()
    first = cache.open("a", TOKENS, "")
    compute(first, 29)
    first.publish(TOKENS)
    snapshots = states_of(cache).snapshots()

    second = cache.open("b", [*TOKENS[:27], 1, 2, 3], "")

    assert second.num_cached == 24
    assert second.state is not None
    assert second.state.source in snapshots.values()
    cache.check_integrity()


def test_the_source_of_a_lease_is_not_evicted_before_it_was_read() -> None:
    cache = make_cache(num_states=3, interval=64)
    first = cache.open("a", TOKENS, "")
    compute(first, 29)
    first.close(TOKENS)
    second = cache.open("b", TOKENS, "")
    cache.open("c", [1, 2, 3], "")
    with pytest.raises(OutOfStates):
        cache.open("d", [4, 5, 6], "")
    assert not cache.can_open()

    compute(second, 4)

    assert cache.can_open()
    cache.check_integrity()


def test_a_new_request_takes_the_place_of_the_least_recently_used_snapshot() -> None:
    cache = make_cache(num_states=2, interval=64)
    first = cache.open("a", TOKENS, "")
    compute(first, 29)
    first.close(TOKENS)
    assert states_of(cache).num_snapshots == 1

    leases = [cache.open(name, [7, 8, 9], "") for name in "bc"]

    assert states_of(cache).num_snapshots == 0
    assert states_of(cache).num_evicted == 1
    assert cache.open("d", TOKENS, "") if cache.can_open() else leases
    cache.check_integrity()


def test_of_an_output_only_the_newest_snapshot_is_left() -> None:
    cache = make_cache()
    lease = cache.open("a", TOKENS, "")
    compute(lease, 5)
    lease.publish(TOKENS[:5])
    for _ in range(27):
        compute(lease, 1)
        lease.publish(TOKENS[: lease.num_tokens])

    assert states_of(cache).num_snapshots == 2  # that of the prompt, and the newest
    lease.close(TOKENS)
    cache.reset_prefix_cache()
    assert states_of(cache).pool.num_free == 8
    cache.check_integrity()


def test_without_a_prefix_cache_no_snapshot_is_taken() -> None:
    cache = KvCache(64, 4, prefix_cache=False, states=StatePool(2, 4, max_drafts=0))
    lease = cache.open("a", TOKENS, "")
    lease.reserve(29)
    span = lease.span(0, 29, ends_prompt=True)

    assert span is not None
    assert span.snapshots == ()


def test_a_state_that_nobody_counts_is_found() -> None:
    cache = make_cache()
    states_of(cache).take()
    with pytest.raises(AssertionError, match="recurrent state"):
        cache.check_integrity()


def test_where_the_only_room_is_the_snapshot_it_could_use_a_request_starts_anew() -> None:
    cache = make_cache(num_states=2)
    first = cache.open("a", TOKENS, "")
    compute(first, 8)
    first.publish(TOKENS)
    assert cache.can_open()

    second = cache.open("b", TOKENS, "")

    assert second.num_cached == 0
    assert states_of(cache).snapshot_counts() == {"taken": 1, "found": 1, "evicted": 1}
    cache.check_integrity()
    assert not cache.can_open()
    with pytest.raises(OutOfStates):
        cache.open("c", TOKENS, "")
    cache.check_integrity()


def test_usage_tells_free_evictable_and_leased_states_apart() -> None:
    cache = make_cache(num_states=4)
    lease = cache.open("a", TOKENS, "")
    compute(lease, 8)
    lease.publish(TOKENS)

    assert cache.usage().states == StateUsage(4, num_free=1, num_evictable=2, num_leased=1)


def test_rows_are_counted_by_what_became_of_them() -> None:
    cache = make_cache()
    lease = cache.open("a", TOKENS, "")
    compute(lease, 5)
    compute(lease, 1, num_drafts=4, num_kept=3)
    compute(lease, 1)

    assert states_of(cache).row_counts == {"known": 7, "drafted": 4, "replayed": 3}
