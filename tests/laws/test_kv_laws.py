"""Laws of the paged cache, against a dictionary that knows what every page should hold.

The model knows cached prefixes by their tokens, so it predicts every hit, every eviction and every
count; and it keeps what was written into each slot, so that each lease must read exactly the rows
that it would have computed itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slipstream.kv.cache import KvCache, Lease, OutOfPages
from tests.support.prefix_model import SALTS, TOKENS, Prefix, PrefixModel, page_prefixes

ALL = 99
LENGTHS = st.sampled_from([ALL, ALL, ALL, *range(12)])
MOSTLY = st.sampled_from([True, True, True, False])
LAW_SETTINGS = settings(max_examples=150, stateful_step_count=50, deadline=None)


@dataclass
class LeaseModel:
    lease: Lease
    salt: str
    tokens: list[int]
    num_tokens: int
    num_published_pages: int
    num_pages: int
    num_reserved: int = 0


class CacheMachine(RuleBasedStateMachine):
    """Opens, fills, speculates, publishes, preempts and evicts, in any order."""

    @initialize(
        num_pages=st.integers(3, 16),
        page_size=st.integers(1, 3),
        prefix_cache=MOSTLY,
    )
    def start(self, num_pages: int, page_size: int, prefix_cache: bool) -> None:
        self.cache = KvCache(num_pages, page_size, prefix_cache=prefix_cache)
        self.num_pages = num_pages
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self.prefixes = PrefixModel()
        self.leases: dict[str, LeaseModel] = {}
        self.written: dict[int, Prefix] = {}

    @precondition(lambda self: len(self.leases) < 4)
    @rule(tokens=TOKENS, salt=SALTS, use_prefix=MOSTLY, num_rows=LENGTHS)
    def open(self, tokens: list[int], salt: str, use_prefix: bool, num_rows: int) -> None:
        name = next(name for name in "wxyz" if name not in self.leases)
        lease = self.cache.open(name, tokens, salt, use_prefix=use_prefix)
        expected = self.prefixes.hit_len(salt, tokens[:-1], self.page_size) if use_prefix else 0
        assert lease.num_cached == lease.num_tokens == expected
        num_pages = expected // self.page_size
        model = LeaseModel(lease, salt, tokens, expected, num_pages, num_pages)
        self.leases[name] = model
        self._prefill(model, num_rows)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), draft=TOKENS, is_rolled_back=st.booleans())
    def speculate(self, data: st.DataObject, draft: list[int], is_rolled_back: bool) -> None:
        model = self._draw_lease(data)
        if not self._prefill(model, ALL) or not self._reserve(model, len(draft)):
            return
        kept = sorted(data.draw(st.sets(st.integers(0, len(draft) - 1)), label="kept"))
        kept_tokens = [draft[offset] for offset in kept]
        self._write(model, kept, kept_tokens)
        moves = model.lease.compact(kept)
        assert all(moves.sources != moves.targets)
        for source, target in zip(moves.sources.tolist(), moves.targets.tolist(), strict=True):
            self.written[target] = self.written[source]
        model.tokens = model.tokens + kept_tokens
        self._commit(model, len(kept))
        if is_rolled_back:
            self._rollback(model)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        self._rollback(self._draw_lease(data))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), known_len=LENGTHS)
    def publish(self, data: st.DataObject, known_len: int) -> None:
        model = self._draw_lease(data)
        model.lease.publish([*model.tokens, 0, 0, 0][:known_len])
        self._publish(model, known_len)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), known_len=LENGTHS | st.none())
    def close_or_preempt(self, data: st.DataObject, known_len: int | None) -> None:
        model = self._draw_lease(data)
        name = model.lease.request_id
        model.lease.close(None if known_len is None else [*model.tokens, 0, 0][:known_len])
        self._publish(model, known_len or 0)
        if model.num_published_pages:
            self.prefixes.touch(self._locked_by(model))
        del self.leases[name]

    @rule(count=st.integers(0, 12))
    def evict(self, count: int) -> None:
        assert self.cache.evict(count) == len(self.prefixes.evict(count, self._locked()))

    @rule()
    def reset(self) -> None:
        expected = self.prefixes.evict(self.num_pages, self._locked())
        assert self.cache.reset_prefix_cache() == len(expected)

    @invariant()
    def no_page_is_lost(self) -> None:
        self.cache.check_integrity()
        usage = self.cache.usage()
        num_evictable = len(self.prefixes.last_used.keys() - self._locked())
        assert usage.num_cached == len(self.prefixes.last_used)
        assert usage.num_evictable == num_evictable
        assert usage.num_free == self._num_free()
        assert usage.num_leased == self.num_pages - usage.num_free - num_evictable

    @invariant()
    def each_lease_reads_what_it_would_have_computed(self) -> None:
        for model in self.leases.values():
            assert model.lease.num_tokens == model.num_tokens
            assert model.lease.num_reserved == model.num_reserved
            for row, slot in enumerate(model.lease.slots(0, model.num_tokens).tolist()):
                assert self.written[slot] == (model.salt, tuple(model.tokens[: row + 1]))

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for model in self.leases.values():
            model.lease.close(None)
        self.cache.reset_prefix_cache()
        assert self.cache.usage().num_free == self.num_pages

    def _draw_lease(self, data: st.DataObject) -> LeaseModel:
        return self.leases[data.draw(st.sampled_from(sorted(self.leases)), label="lease")]

    def _reserve(self, model: LeaseModel, count: int) -> bool:
        num_missing = max(0, -(-(model.num_tokens + count) // self.page_size) - model.num_pages)
        shortage = max(0, num_missing - self._num_free())
        locked = self._locked()
        if shortage > len(self.prefixes.last_used.keys() - locked):
            before = model.lease.pages
            with pytest.raises(OutOfPages):
                model.lease.reserve(count)
            assert model.lease.pages == before
            return False
        model.lease.reserve(count)
        self.prefixes.evict(shortage, locked)
        model.num_pages += num_missing
        model.num_reserved = count
        return True

    def _write(self, model: LeaseModel, kept: list[int], tokens: list[int]) -> None:
        """Every reserved row is written: those in `kept` with the path's tokens, others junk."""
        slots = model.lease.slot_table()[model.num_tokens :].tolist()
        committed = model.tokens[: model.num_tokens]
        for slot in slots:
            self.written[slot] = ("rejected", ())
        for index, offset in enumerate(kept):
            self.written[slots[offset]] = (model.salt, (*committed, *tokens[: index + 1]))

    def _prefill(self, model: LeaseModel, num_rows: int) -> bool:
        count = min(num_rows, len(model.tokens) - model.num_tokens)
        if not self._reserve(model, count):
            return False
        self._write(model, list(range(count)), model.tokens[model.num_tokens :][:count])
        self._commit(model, count)
        return True

    def _rollback(self, model: LeaseModel) -> None:
        model.lease.rollback()
        model.num_reserved = 0
        model.num_pages = -(-model.num_tokens // self.page_size)

    def _commit(self, model: LeaseModel, count: int) -> None:
        model.lease.commit(count)
        model.num_tokens += count
        model.num_reserved -= count

    def _publish(self, model: LeaseModel, known_len: int) -> None:
        first = model.num_published_pages
        stop = min(known_len, model.num_tokens) // self.page_size
        if self.prefix_cache and stop > first:
            self.prefixes.touch(
                page_prefixes(model.salt, model.tokens, first, stop, self.page_size)
            )
            model.num_published_pages = stop

    def _locked_by(self, model: LeaseModel) -> list[Prefix]:
        return page_prefixes(model.salt, model.tokens, 0, model.num_published_pages, self.page_size)

    def _locked(self) -> set[Prefix]:
        return {prefix for model in self.leases.values() for prefix in self._locked_by(model)}

    def _num_free(self) -> int:
        num_private = sum(
            model.num_pages - model.num_published_pages for model in self.leases.values()
        )
        return self.num_pages - len(self.prefixes.last_used) - num_private


def test_the_cache_agrees_with_a_dictionary_and_loses_no_page() -> None:
    run_state_machine_as_test(CacheMachine, settings=LAW_SETTINGS)
