"""Laws of the prefix tree, against a dictionary of prefixes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slipstream.kv.radix import RadixNode, RadixTree
from tests.support.prefix_model import SALTS, TOKENS, Prefix, PrefixModel, page_prefixes

LAW_SETTINGS = settings(max_examples=150, stateful_step_count=40, deadline=None)


class RadixMachine(RuleBasedStateMachine):
    """The prefix tree alone, with locks that overlap in any way."""

    @initialize(page_size=st.integers(1, 3))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.tree = RadixTree(page_size)
        self.model = PrefixModel()
        self.pages: dict[Prefix, int] = {}
        self.next_page = 1
        self.locks: list[tuple[RadixNode, list[Prefix]]] = []

    @rule(tokens=TOKENS, salt=SALTS)
    def insert(self, tokens: list[int], salt: str) -> None:
        num_pages = len(tokens) // self.page_size
        given = list(range(self.next_page, self.next_page + num_pages))
        self.next_page += num_pages
        inserted = self.tree.insert(salt, tokens[: num_pages * self.page_size], given)
        prefixes = page_prefixes(salt, tokens, 0, num_pages, self.page_size)
        adopted = [
            page for prefix, page in zip(prefixes, given, strict=True) if prefix not in self.pages
        ]
        for prefix, page in zip(prefixes, given, strict=True):
            self.pages.setdefault(prefix, page)
        if prefixes:
            self.model.touch(prefixes)
        assert inserted.adopted == adopted
        assert inserted.pages == [self.pages[prefix] for prefix in prefixes]

    @rule(tokens=TOKENS, salt=SALTS, keep_locked=st.booleans())
    def match(self, tokens: list[int], salt: str, keep_locked: bool) -> None:
        num_pages = self.model.hit_len(salt, tokens, self.page_size) // self.page_size
        prefixes = page_prefixes(salt, tokens, 0, num_pages, self.page_size)
        path = self.tree.match(salt, tokens)
        assert path.pages == [self.pages[prefix] for prefix in prefixes]
        if path.node is not None and keep_locked:
            self.tree.lock(path.node)
            self.locks.append((path.node, prefixes))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.locks) - 1), label="lock")
        node, prefixes = self.locks.pop(index)
        self.tree.unlock(node)
        self.model.touch(prefixes)

    @rule(count=st.integers(0, 8))
    def evict(self, count: int) -> None:
        expected = [self.pages.pop(prefix) for prefix in self.model.evict(count, self._locked())]
        assert self.tree.evict(count) == expected

    @invariant()
    def counts_and_pages_agree(self) -> None:
        assert {node.page for node in self.tree.nodes()} == set(self.pages.values())
        assert self.tree.num_pages == len(self.pages)
        assert self.tree.num_evictable == len(self.pages.keys() - self._locked())

    def _locked(self) -> set[Prefix]:
        return {prefix for _, prefixes in self.locks for prefix in prefixes}


def test_the_radix_tree_agrees_with_a_dictionary() -> None:
    run_state_machine_as_test(RadixMachine, settings=LAW_SETTINGS)
