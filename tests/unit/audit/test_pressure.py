"""Pressure makes an engine preempt, and leaves nothing behind."""

from __future__ import annotations

from slipstream.audit.pressure import MemoryPressure
from slipstream.kv.cache import KvCache, OutOfPages
from slipstream.kv.lease import Lease


def lease_of(kv: KvCache, name: str, num_tokens: int) -> Lease:
    lease = kv.open(name, range(num_tokens), "")
    lease.reserve(num_tokens)
    lease.commit(num_tokens)
    return lease


def has_room(lease: Lease) -> bool:
    try:
        lease.reserve(8)
    except OutOfPages:
        return False
    lease.rollback()
    return True


def test_all_free_and_all_evictable_pages_are_taken_while_two_sequences_decode() -> None:
    kv = KvCache(16, 4)
    lease_of(kv, "gone", 8).close(range(8))
    first, second = lease_of(kv, "first", 4), lease_of(kv, "second", 4)
    pressure = MemoryPressure(kv)
    for _ in range(4):
        pressure.update(["first", "second"])
    assert not has_room(first)
    assert not has_room(second)
    assert kv.usage().num_evictable == 0


def test_a_sequence_that_decodes_alone_keeps_its_room() -> None:
    kv = KvCache(16, 4)
    lease = lease_of(kv, "only", 4)
    pressure = MemoryPressure(kv)
    for _ in range(9):
        pressure.update(["only"])
        assert has_room(lease)


def test_pressure_ends_when_a_sequence_was_preempted_or_is_finished() -> None:
    kv = KvCache(16, 4)
    first, second = lease_of(kv, "first", 4), lease_of(kv, "second", 4)
    pressure = MemoryPressure(kv)
    for _ in range(4):
        pressure.update(["first", "second"])
    second.close()
    pressure.update(["first", "second"])
    assert has_room(first)


def test_releasing_gives_every_page_back() -> None:
    kv = KvCache(16, 4)
    lease_of(kv, "first", 4)
    lease_of(kv, "second", 4)
    pressure = MemoryPressure(kv)
    for _ in range(4):
        pressure.update(["first", "second"])
    pressure.release()
    assert kv.usage().num_leased == 2
    kv.check_integrity()
