"""Verification is sampling: what the target says along the tree, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import advance
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree
from slipstream.speculation.verify import Candidate, Verdict, verify
from tests.support.native import native_kernels
from tests.support.words import started, text_of

VOCAB = 16
NUM_LIKELY = 5  # tokens that are drawn and drafted often, so that walks go deep
GREEDY = SamplingParams(temperature=0.0)


def rows_of(*best: int) -> torch.Tensor:
    """[rows, vocab] logits, each with one best token."""
    logits = torch.zeros(len(best), VOCAB)
    for row, token in enumerate(best):
        logits[row, token] = 5.0
    return logits


def candidate(
    tree: DraftTree,
    params: SamplingParams = GREEDY,
    *,
    first_row: int = 0,
    prompt: tuple[int, ...] = (),
) -> Candidate:
    return Candidate(
        tree=tree,
        first_row=first_row,
        position=len(prompt),
        params=params,
        state=started(params, prompt),
        seed=params.seed,
    )


def verify_one(tree: DraftTree, logits: torch.Tensor, params: SamplingParams = GREEDY) -> Verdict:
    (verdict,) = verify(Sampler(VOCAB, ()), logits, [candidate(tree, params)])
    return verdict


def chain(*tokens: int) -> DraftTree:
    return DraftTree.chain(tokens, [0.5] * len(tokens), "test")


def test_no_draft_gives_the_target_s_one_token() -> None:
    assert verify_one(EMPTY_TREE, rows_of(7)) == Verdict((7,), (), (0,))


def test_full_acceptance_emits_one_bonus_token() -> None:
    verdict = verify_one(chain(5, 7), rows_of(5, 7, 9))
    assert verdict.tokens == (5, 7, 9)
    assert verdict.path == (0, 1)
    assert verdict.rows == (0, 1, 2)


@pytest.mark.parametrize("num_right", range(5))
def test_the_first_wrong_token_is_replaced_by_the_target_s(num_right: int) -> None:
    draft = [1, 2, 3, 4]
    draft[num_right:] = [9] * (4 - num_right)
    verdict = verify_one(chain(*draft), rows_of(1, 2, 3, 4, 5))
    assert verdict.tokens == tuple(range(1, num_right + 2))
    assert verdict.path == tuple(range(num_right))


def test_what_agrees_again_behind_a_wrong_token_does_not_count() -> None:
    verdict = verify_one(chain(1, 9, 3), rows_of(1, 2, 3, 4))
    assert verdict.tokens == (1, 2)


def test_the_branch_that_carries_the_token_is_followed() -> None:
    tree = DraftTree((9, 1, 8, 2), (ROOT, ROOT, 1, 1), (0.9, 0.1, 0.1, 0.1), (frozenset("t"),) * 4)
    verdict = verify_one(tree, rows_of(1, 6, 2, 6, 3))
    assert verdict.tokens == (1, 2, 3)
    assert verdict.path == (1, 3)
    assert verdict.rows == (0, 2, 4)


def test_each_candidate_is_judged_by_its_own_rows() -> None:
    logits = rows_of(3, 1, 2, 8, 4)
    verdicts = verify(
        Sampler(VOCAB, ()),
        logits,
        [
            candidate(chain(1), first_row=1),
            candidate(EMPTY_TREE, first_row=0),
            candidate(chain(8), first_row=3),
        ],
    )
    assert [verdict.tokens for verdict in verdicts] == [(1, 2), (3,), (8, 4)]


def test_no_candidates_give_no_verdicts() -> None:
    assert verify(Sampler(VOCAB, ()), torch.empty(0, VOCAB), []) == []


def test_the_state_is_walked_along_the_kept_path() -> None:
    """A repetition penalty forbids the second 5, though its row's best token is 5."""
    params = SamplingParams(temperature=0.0, repetition_penalty=10.0)
    logits = rows_of(5, 5, 7)
    logits[:, 6] = 3.0
    verdict = verify_one(chain(5, 5), logits, params)
    assert verdict.tokens == (5, 6)


@pytest.mark.parametrize("draws_natively", [False, True])
def test_a_bias_is_added_to_each_row_s_own_logits(draws_natively: bool) -> None:
    params = SamplingParams(temperature=0.01, logit_bias={5: 2.0})
    logits = rows_of(5, 7, 9)
    sampler = Sampler(VOCAB, (), native_kernels() if draws_natively else None)
    (verdict,) = verify(sampler, logits, [candidate(chain(5, 7), params)])
    assert verdict.tokens == (5, 7, 9)


def test_a_faulty_row_on_the_path_ends_the_verdict_with_its_fault() -> None:
    logits = rows_of(1, 2, 3)
    logits[1] = math.nan
    verdict = verify_one(chain(1, 2), logits)
    assert verdict.tokens == (1,)
    assert verdict.fault is not None


def test_a_faulty_row_beside_the_path_harms_nobody() -> None:
    logits = rows_of(1, 2, 3)
    logits[2] = math.nan
    verdict = verify_one(chain(9, 2), logits)
    assert verdict == Verdict((1,), (), (0,))


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_k=st.sampled_from([0, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    min_tokens=st.sampled_from([0, 0, 2]),
    bad_words=st.sampled_from([(), (text_of(1),), (text_of(2, 3),)]),
    logit_bias=st.sampled_from([{}, {4: 2.0}, {0: 9.0, 1: -9.0}]),
    seed=st.integers(0, 5),
)


@pytest.mark.parametrize("draws_natively", [False, True])
@settings(max_examples=120, deadline=None)
@given(
    params=PARAMS,
    edges=st.lists(st.tuples(st.integers(-1, 8), st.integers(0, NUM_LIKELY)), max_size=12),
    seed=st.integers(0, 1000),
)
def test_every_token_is_what_the_sampler_alone_says_there(
    draws_natively: bool, params: SamplingParams, edges: list[tuple[int, int]], seed: int
) -> None:
    nodes: dict[tuple[int, int], int] = {}
    for parent, token in edges:
        nodes.setdefault((min(parent, len(nodes) - 1), token), len(nodes))
    parents, tokens = zip(*nodes, strict=True) if nodes else ((), ())
    tree = DraftTree(tokens, parents, (0.5,) * len(nodes), (frozenset("t"),) * len(nodes))
    logits = torch.randn(len(tree) + 1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, NUM_LIKELY:] -= 6.0
    verifying = Sampler(VOCAB, (2,), native_kernels() if draws_natively else None)
    (verdict,) = verify(verifying, logits, [candidate(tree, params, prompt=(1, 2))])
    sampler = Sampler(VOCAB, (2,))
    state, node = started(params, (1, 2)), ROOT
    for number, token in enumerate(verdict.tokens):
        row = logits[1 + node][None]
        request = RowRequest(params, state, params.seed, 2 + number)
        assert sampler.sample(row, [request]) == [token]
        assert verdict.rows[number] == 1 + node
        state = advance(params, state, token)
        child = tree.child(node, token)
        is_last = number == len(verdict.tokens) - 1
        assert (child is None) == is_last
        if child is not None:
            assert verdict.path[number] == child
            node = child
