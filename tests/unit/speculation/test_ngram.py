"""Prompt lookup."""

from __future__ import annotations

from dataclasses import replace

from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafters.ngram import NgramDrafter, NgramIndex, NgramRules
from slipstream.speculation.tree import EMPTY_TREE, DraftTree
from tests.support.drafters import committed, draft_context

EOS = 2
RULES = NgramRules(
    match="longest_latest",
    min_n=2,
    max_n=4,
    max_draft_len=4,
    vocab_size=1000,
    eos_token_ids=frozenset({EOS}),
)


def _propose(tokens: list[int], rules: NgramRules = RULES) -> DraftTree:
    return NgramDrafter("ngram", rules).propose([draft_context(tokens)])[0]


def test_what_followed_the_last_tokens_is_copied() -> None:
    assert _propose([5, 6, 7, 8, 9, 5, 6]).tokens == (7, 8, 9, 5)


def test_text_without_repetition_gives_no_draft() -> None:
    assert _propose([5, 6, 7, 8, 9]) == EMPTY_TREE
    assert _propose([5]) == EMPTY_TREE


def test_a_match_shorter_than_min_n_does_not_count() -> None:
    assert _propose([5, 6, 7, 5]) == EMPTY_TREE


def test_a_longer_match_wins_over_a_later_one() -> None:
    text = [1, 5, 6, 7, 3, 5, 6, 8, 1, 5, 6]
    assert _propose(text).tokens[0] == 7


def test_of_equal_matches_the_policy_takes_the_earliest_or_the_latest() -> None:
    text = [5, 6, 7, 3, 5, 6, 8, 4, 5, 6]
    assert _propose(text, replace(RULES, match="longest_earliest")).tokens[0] == 7
    assert _propose(text, replace(RULES, match="first_leftmost")).tokens[0] == 7
    assert _propose(text, replace(RULES, match="longest_latest")).tokens[0] == 8


def test_the_latest_match_copies_into_itself_so_that_a_loop_fills_the_draft() -> None:
    assert _propose([9, 5, 6, 5, 6]).tokens == (5, 6, 5, 6)
    assert _propose([9, 9, 9]).tokens == (9, 9, 9, 9)


def test_the_other_policies_end_with_the_text() -> None:
    assert _propose([9, 5, 6, 5, 6], replace(RULES, match="longest_earliest")).tokens == (5, 6)


def test_a_draft_is_cut_before_or_after_the_end_of_sequence() -> None:
    text = [5, 6, 7, EOS, 9, 5, 6]
    assert _propose(text, replace(RULES, cut_at_eos=True)).tokens == (7,)
    assert _propose(text, replace(RULES, cut_at_eos=False)).tokens == (7, EOS)


def test_a_request_that_ignores_the_end_of_sequence_drafts_past_it() -> None:
    context = draft_context([5, 6, 7, EOS, 9, 5, 6], params=SamplingParams(ignore_eos=True))
    (tree,) = NgramDrafter("ngram", RULES).propose([context])
    assert tree.tokens == (7, EOS, 9, 5)


def test_ids_beyond_the_vocabulary_end_the_draft() -> None:
    assert _propose([5, 6, 7, 1000, 9, 5, 6]).tokens == (7,)


def test_scores_rise_with_the_match_and_fall_with_depth() -> None:
    short = _propose([5, 6, 7, 8, 9, 1, 5, 6])
    long = _propose([3, 4, 5, 6, 7, 8, 9, 1, 3, 4, 5, 6])
    assert long.scores[0] > short.scores[0]
    assert list(short.scores) == sorted(short.scores, reverse=True)


def test_a_text_that_grows_is_proposed_for_as_if_it_were_new() -> None:
    drafter = NgramDrafter("ngram", RULES)
    text = [5, 6, 7, 8]
    for token in [5, 6, 1, 5, 6, 7, 8, 5]:
        text.append(token)
        assert drafter.propose([draft_context(text)])[0] == _propose(text)


def test_a_reused_request_id_starts_afresh() -> None:
    drafter = NgramDrafter("ngram", RULES)
    drafter.propose([draft_context([5, 6, 7, 5, 6, 7, 5, 6])])
    (tree,) = drafter.propose([draft_context([8, 9, 3, 8, 9])])
    assert tree.tokens == (3, 8, 9, 3)


def test_finishing_or_releasing_a_request_frees_its_index() -> None:
    drafter = NgramDrafter("ngram", RULES)
    contexts = [draft_context(list(range(100)), request_id=name) for name in ("a", "b")]
    drafter.propose(contexts)
    assert drafter.memory_bytes() > 0
    drafter.observe([committed([1, 2], 1, request_id="a", is_finished=True)])
    drafter.release(["b", "unknown"])
    assert drafter.memory_bytes() == 0


def test_a_very_long_text_is_indexed_at_its_end_only() -> None:
    tokens = list(range(1000)) * 2
    index = NgramIndex(tokens, 2, 4, is_latest=True, max_entries=300)
    assert index.memory_bytes() < 300 * 12 + len(tokens) * 4 + 100
    index.extend([998, 999])
    place = index.find()
    assert place is not None
    assert place.end == 2000
