"""Outputs shared between requests, and what all of it weighs."""

from __future__ import annotations

import tracemalloc
from array import array
from random import Random

import pytest

from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton
from slipstream.speculation.drafters.suffix.ledger import Ledger
from slipstream.speculation.drafters.suffix.memory import SharedMemory


def _knows(memory: SharedMemory, tokens: list[int]) -> bool:
    return memory.automaton.match([0, *tokens])[1] == len(tokens)


def test_a_new_output_beyond_the_limit_evicts_the_oldest() -> None:
    memory = SharedMemory(8, 2)
    for name, tokens in (("a", [1, 2]), ("b", [3, 4]), ("c", [5, 6])):
        memory.start(name)
        memory.extend(name, tokens)
    assert memory.keys == ("b", "c")
    assert not _knows(memory, [1, 2])
    assert _knows(memory, [3, 4])


def test_what_an_evicted_output_gets_later_is_not_kept() -> None:
    memory = SharedMemory(8, 1)
    memory.start("a")
    memory.start("b")
    memory.extend("a", [1, 2])
    assert not _knows(memory, [1, 2])


def test_outputs_may_grow_in_turns() -> None:
    memory = SharedMemory(8, None)
    for name in ("a", "b"):
        memory.start(name)
    for one, other in ((1, 7), (2, 8), (3, 9)):
        memory.extend("a", [one])
        memory.extend("b", [other])
    assert _knows(memory, [1, 2, 3])
    assert _knows(memory, [7, 8, 9])
    assert not _knows(memory, [1, 8])


def test_a_limit_of_none_never_evicts_and_a_limit_of_zero_keeps_nothing() -> None:
    unlimited, nothing = SharedMemory(8, None), SharedMemory(8, 0)
    for memory in (unlimited, nothing):
        for name in range(50):
            memory.start(name)
            memory.extend(name, [name, name + 1])
    assert len(unlimited) == 50
    assert len(nothing) == 0


def test_a_restarted_output_forgets_what_it_had() -> None:
    memory = SharedMemory(8, None)
    memory.start("a")
    memory.extend("a", [1, 2])
    memory.start("a")
    assert not _knows(memory, [1, 2])
    assert len(memory) == 1


def test_the_ledger_knows_the_sum_and_the_largest() -> None:
    ledger = Ledger()
    assert ledger.largest() is None
    for owner, num_bytes in (("a", 5), ("b", 7), ("c", 7), ("a", 6)):
        ledger.record(owner, num_bytes)
    assert ledger.total_bytes == 20
    assert ledger.largest() == "b"
    ledger.record("b", 0)
    assert ledger.largest() == "c"


@pytest.mark.parametrize("num_different", [10, 300, 30_000])
def test_the_estimated_memory_is_near_the_allocated_one(num_different: int) -> None:
    random = Random(num_different)
    tokens = array("i", [random.randrange(1000, 1000 + num_different) for _ in range(8000)])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    automaton, sequence = SuffixAutomaton(24), IndexedSequence()
    automaton.extend(sequence, tokens)
    allocated = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert automaton.memory_bytes() == pytest.approx(allocated, rel=0.3)


def test_a_long_text_costs_few_bytes_and_states_per_token() -> None:
    automaton, sequence = SuffixAutomaton(24), IndexedSequence()
    automaton.extend(sequence, [7] * 20_000)
    assert automaton.num_states <= 25
    assert automaton.memory_bytes() < 10 * 20_000
