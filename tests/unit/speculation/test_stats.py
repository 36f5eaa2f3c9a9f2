"""The counters that clients and operators see."""

from __future__ import annotations

import pytest

from slipstream.speculation.stats import AcceptanceCounter
from slipstream.speculation.tree import EMPTY_TREE, DraftTree


def chain(length: int) -> DraftTree:
    return DraftTree.chain(list(range(length)), [0.5] * length, "ngram")


def test_a_plain_step_counts_as_a_step_only() -> None:
    counter = AcceptanceCounter()
    counter.observe(EMPTY_TREE, (), 1)
    assert counter == AcceptanceCounter(num_steps=1)
    assert counter.mean_acceptance_length == 1.0


def test_a_chain_counts_by_position() -> None:
    counter = AcceptanceCounter()
    counter.observe(chain(3), (0, 1), 3)
    counter.observe(chain(2), (), 1)
    assert counter.num_drafts == 2
    assert counter.num_draft_tokens == 5
    assert counter.num_accepted_tokens == 2
    assert counter.num_emitted_tokens == 4
    assert counter.drafted_per_pos == [2, 2, 1]
    assert counter.accepted_per_pos == [1, 1]
    assert counter.histogram == [1, 0, 1]
    assert counter.by_drafter == {"ngram": 2}


def test_a_tree_counts_every_node_but_each_depth_once() -> None:
    sources = (frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"}))
    tree = DraftTree((5, 6, 7), (-1, -1, 1), (0.5, 0.4, 0.3), sources)
    counter = AcceptanceCounter()
    counter.observe(tree, (1, 2), 3)
    assert counter.num_draft_tokens == 3
    assert counter.drafted_per_pos == [1, 1]
    assert counter.accepted_per_pos == [1, 1]
    assert counter.by_drafter == {"a": 1, "b": 2}


def test_the_mean_acceptance_length_is_tokens_per_drafted_step_with_the_bonus() -> None:
    counter = AcceptanceCounter()
    for num_kept in (4, 0, 2):
        counter.observe(chain(4), range(num_kept), num_kept + 1)
        counter.observe(EMPTY_TREE, (), 1)
    assert counter.mean_acceptance_length == pytest.approx((5 + 1 + 3) / 3)
    assert counter.num_steps == 6


def test_the_histogram_and_the_positions_tell_the_same_story() -> None:
    counter = AcceptanceCounter()
    for num_kept in (0, 1, 1, 3, 4, 2, 4):
        counter.observe(chain(4), range(num_kept), num_kept + 1)
    at_least = [sum(counter.histogram[depth:]) for depth in range(1, 5)]
    assert at_least == counter.accepted_per_pos
    assert sum(counter.histogram) == counter.num_drafts
    assert sum(counter.accepted_per_pos) == counter.num_accepted_tokens
