"""The suffix drafter: own text, other outputs, salts, memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafters.suffix.drafter import SuffixDrafter, SuffixRules
from slipstream.speculation.tree import EMPTY_TREE, DraftTree
from tests.support.drafters import committed, draft_context

EOS = 2
RULES = SuffixRules(
    max_text_tokens=32768,
    max_depth=16,
    max_cached_requests=100,
    max_memory_bytes=2**24,
    max_spec_factor=4.0,
    max_spec_offset=0.0,
    min_token_prob=0.1,
    is_tree=False,
    vocab_size=1000,
    eos_token_ids=frozenset({EOS}),
)


def _propose(
    drafter: SuffixDrafter, tokens: list[int], request_id: str = "asker", salt: str = ""
) -> DraftTree:
    context = draft_context(tokens, request_id=request_id, salt=salt)
    return drafter.propose([context])[0]


def _finish(
    drafter: SuffixDrafter, output: list[int], request_id: str = "done", salt: str = ""
) -> None:
    """Report a whole output after a prompt of one token."""
    observation = committed(
        [1, *output], len(output), request_id=request_id, salt=salt, is_finished=True
    )
    drafter.observe([observation])
    drafter.release([request_id])


def test_the_requests_own_text_is_proposed_from() -> None:
    tree = _propose(SuffixDrafter("suffix", RULES), [5, 6, 7, 8, 9, 5, 6])
    assert tree.tokens[:3] == (7, 8, 9)
    assert tree.sources[0] == {"suffix"}
    assert tree.is_chain


def test_a_finished_output_helps_later_requests() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    _finish(drafter, [5, 6, 7, 8])
    assert _propose(drafter, [3, 4, 5, 6]).tokens == (7, 8)


def test_a_running_output_helps_concurrent_requests() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    drafter.observe([committed([1, 5, 6, 7, 8], 4, request_id="running")])
    assert _propose(drafter, [3, 4, 5, 6]).tokens == (7, 8)


def test_prompts_are_not_shared() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    _propose(drafter, [5, 6, 7, 8], request_id="other")
    drafter.observe([committed([5, 6, 7, 8, 9], 1, request_id="other", prompt_len=4)])
    assert _propose(drafter, [3, 4, 5, 6]) == EMPTY_TREE


def test_an_output_released_before_it_finished_is_forgotten() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    drafter.observe([committed([1, 5, 6, 7, 8], 4, request_id="cancelled")])
    drafter.release(["cancelled"])
    assert _propose(drafter, [3, 4, 5, 6]) == EMPTY_TREE
    drafter.release(["asker"])
    assert drafter.memory_bytes() == 0


def test_outputs_reported_step_by_step_equal_one_report() -> None:
    output = [5, 6, 7, 8, 5, 6, 9, 9]
    at_once, in_steps = SuffixDrafter("suffix", RULES), SuffixDrafter("suffix", RULES)
    _finish(at_once, output)
    for end in range(1, len(output) + 1):
        observation = committed(
            [1, *output[:end]], 1, request_id="done", is_finished=end == len(output)
        )
        in_steps.observe([observation])
    assert _propose(at_once, [5, 6]) == _propose(in_steps, [5, 6])


def test_another_salt_sees_nothing() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    _finish(drafter, [5, 6, 7, 8], salt="one")
    assert _propose(drafter, [3, 4, 5, 6], salt="other") == EMPTY_TREE


def test_drafts_end_with_eos_or_a_stop_token() -> None:
    text = [5, 6, 7, EOS, 9, 8, 5, 6]
    drafter = SuffixDrafter("suffix", RULES)
    assert _propose(drafter, text).tokens == (7, EOS)
    stops = draft_context(text, params=SamplingParams(stop_token_ids=(7,)))
    ignores = draft_context(text, params=SamplingParams(ignore_eos=True))
    assert drafter.propose([stops])[0].tokens == (7,)
    assert len(drafter.propose([ignores])[0].tokens) > 2


def test_tree_mode_proposes_alternatives() -> None:
    text = [5, 6, 7, 3, 5, 6, 8, 4, 5, 6]
    drafter = SuffixDrafter("suffix", replace(RULES, is_tree=True))
    tree = _propose(drafter, text)
    assert set(tree.children(-1)) == {7, 8}


def test_a_text_that_grows_is_proposed_for_as_if_it_were_new() -> None:
    drafter = SuffixDrafter("suffix", replace(RULES, max_cached_requests=0))
    text = [5, 6, 7, 8]
    for token in [5, 6, 1, 5, 6, 7, 8, 5]:
        text.append(token)
        assert _propose(drafter, text) == _propose(drafter, list(text), request_id=f"{len(text)}")


def test_a_reused_request_id_starts_afresh() -> None:
    drafter = SuffixDrafter("suffix", RULES)
    _propose(drafter, [5, 6, 7, 5, 6, 7])
    assert _propose(drafter, [5, 6, 7, 5, 6, 9, 5, 6]).tokens[0] in (7, 9)
    assert _propose(drafter, [8, 9, 3, 8, 9]).tokens[0] == 3


def test_a_long_text_is_indexed_at_its_end_only() -> None:
    drafter = SuffixDrafter("suffix", replace(RULES, max_text_tokens=50))
    text = [5, 6, 7, *range(100, 200), 5, 6]
    assert _propose(drafter, text) == EMPTY_TREE
    assert _propose(drafter, [*text, 190]).tokens[0] == 191


def test_memory_stays_within_its_bound_and_the_newest_outputs_stay() -> None:
    rules = replace(RULES, max_memory_bytes=200_000, vocab_size=10_000)
    drafter = SuffixDrafter("suffix", rules)
    outputs = [list(range(first, first + 200)) for first in range(1000, 9000, 200)]
    for number, output in enumerate(outputs):
        _finish(drafter, output, request_id=str(number))
        assert drafter.memory_bytes() <= rules.max_memory_bytes
    assert _propose(drafter, outputs[-1][:10]).tokens[0] == outputs[-1][10]
    assert _propose(drafter, outputs[0][:10]) == EMPTY_TREE


def test_a_salt_below_its_share_keeps_its_outputs_beside_a_greedy_one() -> None:
    drafter, random = SuffixDrafter("suffix", replace(RULES, max_memory_bytes=200_000)), Random(1)
    _finish(drafter, [5, 6, 7, 8], salt="small")
    for number in range(40):
        output = [random.randrange(10, 1000) for _ in range(200)]
        _finish(drafter, output, request_id=str(number), salt="greedy")
    assert _propose(drafter, [3, 5, 6], salt="small").tokens == (7, 8)


def test_running_texts_that_do_not_fit_are_dropped_and_the_rest_goes_on() -> None:
    rules = replace(RULES, max_memory_bytes=100_000)
    drafter, random = SuffixDrafter("suffix", rules), Random(1)
    _propose(drafter, [random.randrange(10, 1000) for _ in range(3000)], request_id="long")
    assert drafter.memory_bytes() <= rules.max_memory_bytes
    assert _propose(drafter, [5, 6, 7, 5, 6], request_id="short").tokens[0] == 7
    _finish(drafter, [5, 6, 8, 9])
    assert _propose(drafter, [4, 5, 6], request_id="shared").tokens == (8, 9)


def test_without_cached_requests_nothing_outlives_its_request() -> None:
    drafter = SuffixDrafter("suffix", replace(RULES, max_cached_requests=0))
    _finish(drafter, [5, 6, 7, 8])
    assert drafter.memory_bytes() == 0
