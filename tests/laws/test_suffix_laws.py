"""The suffix automaton counts what counting would count, whatever comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.drafters.ngram import NgramIndex
from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton

ABSENT = 99

# One step: which sequence, and what is appended to it; None removes it.
steps = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.lists(st.integers(0, 2), max_size=8)), max_size=10
)


def _recount(sequences: Sequence[IndexedSequence], max_depth: int) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for sequence in sequences:
        tokens = tuple(sequence.tokens)
        for start in range(len(tokens)):
            for end in range(start + 1, min(start + max_depth, len(tokens)) + 1):
                counts[tokens[start:end]] += 1
    return counts


def _check(automaton: SuffixAutomaton, sequences: Sequence[IndexedSequence]) -> None:
    max_depth = automaton.max_depth
    counts = _recount(sequences, max_depth)
    for substring in [*counts, (ABSENT,)]:
        if len(substring) == max_depth:
            continue
        # The token before makes `substring` a proper suffix of the context.
        state, length = automaton.match((ABSENT, *substring))
        if substring not in counts:
            assert length == 0
            continue
        assert length == len(substring)
        assert automaton.counts[state] == counts[substring]
        children = {
            token: automaton.counts[child] for token, child in automaton.transitions.items(state)
        }
        expected = {
            longer[-1]: count
            for longer, count in counts.items()
            if longer[:-1] == substring and len(longer) == len(substring) + 1
        }
        assert children == expected
        best = automaton.best_child(state)
        assert (best is None) == (not expected)
        if best is not None:
            assert automaton.counts[best[1]] == max(expected.values())


@settings(deadline=None, max_examples=120)
@given(st.integers(2, 6), steps)
def test_counts_and_children_equal_a_recount_after_every_change(
    max_depth: int, changes: list[tuple[int, list[int] | None]]
) -> None:
    automaton = SuffixAutomaton(max_depth)
    sequences: dict[int, IndexedSequence] = {}
    for name, tokens in changes:
        if tokens is not None:
            automaton.extend(sequences.setdefault(name, IndexedSequence()), tokens)
        elif name in sequences:
            automaton.remove(sequences.pop(name))
        _check(automaton, list(sequences.values()))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), steps)
def test_removing_everything_leaves_nothing(
    max_depth: int, changes: list[tuple[int, list[int] | None]]
) -> None:
    automaton = SuffixAutomaton(max_depth)
    sequences: dict[int, IndexedSequence] = {}
    for name, tokens in changes:
        automaton.extend(sequences.setdefault(name, IndexedSequence()), tokens or ())
    for sequence in sequences.values():
        automaton.remove(sequence)
    assert automaton.num_states == 1
    assert automaton.match((0, 1, 2)) == (0, 0)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(0, 2), max_size=24),
    st.integers(0, 24),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_ngram_index_finds_what_a_scan_finds(
    text: list[int], num_first: int, min_n: int, num_longer: int, is_latest: bool
) -> None:
    index = NgramIndex(text[:num_first], min_n, min_n + num_longer, is_latest=is_latest)
    index.extend(text[num_first:])
    place = index.find()
    assert (place.end if place else None) == _scan(text, min_n, min_n + num_longer, is_latest)


def _scan(text: list[int], min_n: int, max_n: int, is_latest: bool) -> int | None:
    for n in range(min(max_n, len(text) - 1), min_n - 1, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if ends:
            return ends[-1] if is_latest else ends[0]
    return None
