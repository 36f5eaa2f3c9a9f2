"""Laws of recurrent states, against the texts that each state should have taken in.

Every state is followed by the tokens that it knows. Whatever is opened, drafted, kept, published,
preempted or evicted in between, each lease must read a state of its own text, and nothing is lost.
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
from slipstream.kv.states import EMPTY_STATE, OutOfStates, StatePool, StateSpan
from tests.support.prefix_model import SALTS, TOKENS

MAX_DRAFTS = 4
Text = tuple[str, tuple[int, ...]]
LAW_SETTINGS = settings(max_examples=150, stateful_step_count=50, deadline=None)


@dataclass
class TextModel:
    lease: Lease
    salt: str
    tokens: list[int]


class StateMachine(RuleBasedStateMachine):
    """Opens, fills, drafts, keeps, publishes, preempts and evicts, in any order."""

    @initialize(
        num_pages=st.integers(6, 24),
        page_size=st.integers(1, 3),
        num_states=st.integers(1, 6),
        interval_pages=st.integers(1, 3),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        num_pages: int,
        page_size: int,
        num_states: int,
        interval_pages: int,
        prefix_cache: bool,
    ) -> None:
        self.states = StatePool(num_states, interval_pages * page_size, MAX_DRAFTS)
        self.cache = KvCache(num_pages, page_size, prefix_cache=prefix_cache, states=self.states)
        self.num_pages = num_pages
        self.texts: dict[str, TextModel] = {}
        self.known: dict[int, Text] = {}
        self.drafts: dict[int, list[int]] = {}

    @precondition(lambda self: len(self.texts) < 4)
    @rule(tokens=TOKENS, salt=SALTS)
    def open(self, tokens: list[int], salt: str) -> None:
        name = next(name for name in "wxyz" if name not in self.texts)
        if not self.cache.can_open():
            with pytest.raises(OutOfStates):
                self.cache.open(name, tokens, salt)
            return
        self.texts[name] = TextModel(self.cache.open(name, tokens, salt), salt, list(tokens))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), num_rows=st.integers(1, 12))
    def prefill(self, data: st.DataObject, num_rows: int) -> None:
        text = self._draw(data)
        left = len(text.tokens) - text.lease.num_tokens
        self._pass(text, min(num_rows, left), [], 0, ends_prompt=num_rows >= left)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), token=st.integers(0, 2), draft=st.lists(st.integers(0, 2), max_size=4))
    def decode(self, data: st.DataObject, token: int, draft: list[int]) -> None:
        text = self._draw(data)
        if text.lease.num_tokens != len(text.tokens):
            return
        num_kept = data.draw(st.integers(0, len(draft)), label="kept")
        text.tokens = [*text.tokens, token]
        if not self._pass(text, 1, draft, num_kept):
            text.tokens.pop()

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        text = self._draw(data)
        text.lease.publish(text.tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), is_published=st.booleans())
    def close_or_preempt(self, data: st.DataObject, is_published: bool) -> None:
        text = self._draw(data)
        text.lease.close(text.tokens if is_published else None)
        del self.texts[text.lease.request_id]

    @rule(count=st.integers(0, 12))
    def evict(self, count: int) -> None:
        self.cache.evict(count)

    @invariant()
    def nothing_is_lost_or_held_for_nobody(self) -> None:
        self.cache.check_integrity()
        usage = self.states.usage()
        assert usage.num_free + usage.num_evictable + usage.num_leased == usage.num_states
        assert usage.num_leased >= len(self.texts)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for text in self.texts.values():
            text.lease.close(None)
        self.cache.reset_prefix_cache()
        assert self.cache.usage().num_free == self.num_pages
        assert self.states.usage().num_free == self.states.usage().num_states

    def _draw(self, data: st.DataObject) -> TextModel:
        return self.texts[data.draw(st.sampled_from(sorted(self.texts)), label="text")]

    def _pass(
        self,
        text: TextModel,
        num_known: int,
        draft: list[int],
        num_kept: int,
        *,
        ends_prompt: bool = False,
    ) -> bool:
        """A pass over known rows and a draft, of which some stay; false where no page is left."""
        if not num_known:
            return False
        lease = text.lease
        try:
            lease.reserve(num_known + len(draft))
        except OutOfPages:
            return False
        span = lease.span(0, num_known, len(draft), ends_prompt=ends_prompt)
        assert span is not None
        self._take_in(text, span)
        self.drafts[span.target] = list(draft)
        lease.commit(num_known + num_kept)
        lease.rollback()
        text.tokens[lease.num_tokens - num_kept :] = [
            *draft[:num_kept],
            *text.tokens[lease.num_tokens :],
        ]
        return True

    def _take_in(self, text: TextModel, span: StateSpan) -> None:
        """What recurrent layers do with the span; the state must be that of the lease's text."""
        lease = text.lease
        end = lease.num_tokens + span.num_known
        start = lease.num_tokens - span.num_kept
        past = self._known(span.source, text.salt)
        rows = [*self.drafts.get(span.target, [])[: span.num_kept]]
        rows += text.tokens[lease.num_tokens : end]
        assert past == (text.salt, tuple(text.tokens[:start]))
        assert len(rows) == span.num_kept + span.num_known
        assert rows == text.tokens[start:end]
        for count, state in (*span.snapshots, (len(rows), span.target)):
            assert state != EMPTY_STATE
            self.known[state] = (text.salt, tuple(text.tokens[: start + count]))

    def _known(self, state: int, salt: str) -> Text:
        return (salt, ()) if state == EMPTY_STATE else self.known[state]


def test_every_lease_reads_a_state_of_its_own_text_and_no_state_is_lost() -> None:
    run_state_machine_as_test(StateMachine, settings=LAW_SETTINGS)
