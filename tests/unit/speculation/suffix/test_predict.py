"""The likeliest continuation, by counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton
from slipstream.speculation.drafters.suffix.predict import Continuation, Limits, Predictor

LIMITS = Limits(max_nodes=8, max_len=8, min_prob=0.1)


def _predict(
    texts: list[list[int]],
    context: list[int],
    limits: Limits = LIMITS,
    *,
    max_depth: int = 16,
    max_factor: float = 4.0,
    max_offset: float = 0.0,
    is_tree: bool = False,
) -> Continuation:
    automaton = SuffixAutomaton(max_depth)
    for text in texts:
        automaton.extend(IndexedSequence(), text)
    predictor = Predictor(max_depth, max_factor, max_offset, is_tree=is_tree)
    return predictor.predict(automaton, automaton.match([0, *context]), limits)


def test_the_most_frequent_continuation_is_followed_with_its_share() -> None:
    texts = [[5, 6, 7], [5, 6, 8], [5, 6, 8], [5, 6, 8]]
    draft = _predict(texts, [5, 6])
    assert draft.tokens == [8]
    assert draft.probs == [0.75]


def test_probabilities_multiply_along_the_path() -> None:
    texts = [[5, 6, 7], [5, 6, 8], [5, 9, 9], [5, 9, 9]]
    assert _predict(texts, [5]).probs == [0.5, 0.5]
    assert _predict([*texts, [5, 9, 1]], [5]).probs == pytest.approx([3 / 5, 2 / 5])


def test_the_end_of_a_text_counts_as_one_way_to_go_on() -> None:
    assert _predict([[5, 6, 7, 5, 6]], [5, 6]).probs == [0.5, 0.5, 0.5]


def test_of_equal_counts_the_one_seen_last_is_followed() -> None:
    assert _predict([[5, 7], [5, 8]], [5]).tokens == [8]


def test_a_path_ends_where_it_gets_unlikely() -> None:
    texts = [[5, 6, 7], [5, 6, 8], [5, 6, 9], [5, 6, 4]]
    draft = _predict(texts, [5], replace(LIMITS, min_prob=0.5))
    assert draft.tokens == [6]


def test_a_longer_context_may_propose_more() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert len(_predict([text], [1], max_factor=2.0).tokens) == 2
    assert len(_predict([text], [1, 2], max_factor=2.0).tokens) == 4
    assert len(_predict([text], [1, 2], max_factor=1.0, max_offset=1.5).tokens) == 3
    assert not _predict([text], [1], max_factor=1.0, max_offset=-1.0).tokens


def test_a_shorter_context_wins_where_it_promises_more() -> None:
    # After 1 2 one of many ways was taken; after 2 alone the next tokens are nearly certain.
    texts = [[1, 2, 5, 5], [1, 2], [1, 2], [1, 2]] + [[2, 7, 8, 9]] * 20
    draft = _predict(texts, [1, 2], max_factor=2.0)
    assert draft.tokens == [7, 8]
    assert draft.match_len == 1


def test_context_and_draft_together_stay_within_the_depth() -> None:
    text = list(range(1, 12))
    draft = _predict([text], [1, 2, 3], max_depth=6)
    assert draft.tokens == [4, 5, 6, 7]
    assert draft.match_len == 2


def test_an_unknown_context_gives_nothing() -> None:
    assert not _predict([[5, 6, 7]], [8]).tokens
    assert not _predict([], [8]).tokens


def test_nothing_follows_an_end_token_and_no_unknown_id_is_proposed() -> None:
    text = [5, 6, 7, 8, 9]
    assert _predict([text], [5], replace(LIMITS, end_tokens=frozenset({7}))).tokens == [6, 7]
    assert _predict([text], [5], replace(LIMITS, vocab_size=8)).tokens == [6, 7]


def test_a_tree_holds_the_most_probable_nodes_over_all_branches() -> None:
    texts = [[5, 6, 1]] * 5 + [[5, 7, 2]] * 3 + [[5, 8, 3]]
    draft = _predict(texts, [5], replace(LIMITS, max_nodes=4), max_factor=8.0, is_tree=True)
    nodes = set(zip(draft.tokens, draft.parents, strict=True))
    assert nodes == {(6, -1), (7, -1), (1, 0), (2, draft.tokens.index(7))}
    assert draft.score == pytest.approx(2 * 5 / 9 + 2 * 3 / 9)


def test_a_tree_respects_length_end_tokens_vocabulary_and_least_probability() -> None:
    texts = [[5, 6, 1, 1]] * 5 + [[5, 90, 2]] * 5 + [[5, 8, 3]]
    limits = Limits(16, 2, 0.2, vocab_size=80, end_tokens=frozenset({6}))
    draft = _predict(texts, [5], limits, max_factor=16.0, is_tree=True)
    assert draft.tokens == [6]
    deep = _predict([[5, 6, 7, 8, 9]], [5], replace(limits, end_tokens=frozenset()), is_tree=True)
    assert deep.tokens == [6, 7]
