"""Rejection verification leaves the target's law as it is, whatever the draft's law."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.speculation.rejection import (
    ChainLaw,
    block_accepted_len,
    block_law,
    chain_accepted_len,
    chain_law,
    dense_probs,
    residual_probs,
)

VOCAB_SIZE, NUM_DRAFTS = 3, 2


def distributions(seed: int, *shape: int, sparse: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.01
    if sparse:
        weights = weights * (torch.rand(*shape, generator=generator) < 0.6)
        weights[..., 0] += 0.05
    return weights / weights.sum(-1, keepdim=True)


def expected_tokens(law: ChainLaw, rule: str, chains: Tensor, drawn: Tensor) -> Tensor:
    """[vocab, vocab] law of the first two tokens, where the second one was emitted this round."""
    passes = torch.nan_to_num(law.thresholds, 0.0)
    if rule == "chain":
        stops = (1 - passes[:, 0], passes[:, 0] * (1 - passes[:, 1]), passes[:, 0] * passes[:, 1])
    else:
        none = (1 - passes[:, 0]) * (1 - passes[:, 1])
        stops = (none, passes[:, 0] * (1 - passes[:, 1]), passes[:, 1])
    first = torch.zeros(VOCAB_SIZE, dtype=torch.float64)
    residuals = torch.nan_to_num(law.residuals, 0.0)
    for chain, probability, *stop, rows in zip(chains, drawn, *stops, residuals, strict=True):
        first += probability * stop[0] * rows[0]
        first[chain[0]] += probability * (stop[1] + stop[2])
    return first


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.booleans(), st.sampled_from(["chain", "block"]))
def test_the_first_token_has_the_targets_law(
    seed: int, target_sparse: bool, draft_sparse: bool, rule: str
) -> None:
    shape = (NUM_DRAFTS + 1, VOCAB_SIZE)
    target = distributions(seed, *shape, sparse=target_sparse)
    draft = distributions(seed + 1, NUM_DRAFTS, VOCAB_SIZE, sparse=draft_sparse)
    chains = torch.tensor(list(itertools.product(range(VOCAB_SIZE), repeat=NUM_DRAFTS)))
    of_chains = target.expand(len(chains), -1, -1), draft.expand(len(chains), -1, -1)
    drawn = of_chains[1].gather(-1, chains.unsqueeze(-1)).squeeze(-1).prod(-1)
    law = {"chain": chain_law, "block": block_law}[rule](*of_chains, chains)

    first = expected_tokens(law, rule, chains, drawn)

    torch.testing.assert_close(first, target[0], rtol=1e-9, atol=1e-12)


def test_a_draft_with_the_targets_law_is_always_accepted() -> None:
    target = distributions(1, NUM_DRAFTS + 1, VOCAB_SIZE, sparse=False)
    chain = torch.tensor([2, 0])
    for rule in (chain_law, block_law):
        law = rule(target, target[:-1], chain)
        torch.testing.assert_close(law.thresholds, torch.ones(2, dtype=torch.float64))
        torch.testing.assert_close(law.residuals[-1], target[-1])


def test_a_point_mass_is_accepted_with_the_targets_probability() -> None:
    target = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]])
    draft = torch.tensor([[0.0, 1.0, 0.0]])
    law = chain_law(target, draft, torch.tensor([1]))
    assert law.thresholds.tolist() == [0.5]
    assert law.residuals[0].tolist() == [0.5, 0.0, 0.5]


def test_an_empty_residual_is_the_targets_own_row() -> None:
    probs = torch.tensor([0.25, 0.75])
    assert torch.equal(residual_probs(probs, probs), probs)


def test_a_draft_over_a_few_tokens_is_one_over_all() -> None:
    dense = dense_probs(torch.tensor([[3, 1]]), torch.tensor([[0.75, 0.25]]), 5)
    assert dense.tolist() == [[0.0, 0.25, 0.0, 0.75, 0.0]]


@pytest.mark.parametrize(
    ("uniforms", "chain_len", "block_len"),
    [([0.4, 0.2, 0.9], 2, 2), ([0.6, 0.2, 0.1], 0, 3), ([0.6, 0.9, 0.9], 0, 0)],
)
def test_a_chain_stops_at_the_first_failure_and_a_block_at_the_last_success(
    uniforms: list[float], chain_len: int, block_len: int
) -> None:
    thresholds = torch.full((3,), 0.5)
    assert int(chain_accepted_len(thresholds, torch.tensor(uniforms))) == chain_len
    assert int(block_accepted_len(thresholds, torch.tensor(uniforms))) == block_len
