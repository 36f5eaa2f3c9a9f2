"""Rejection verification leaves the target's law as it is, whatever the draft's law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.rejection import (
    ChainLaw,
    Ids,
    Probs,
    block_accepted_len,
    block_law,
    chain_accepted_len,
    chain_law,
    dense_probs,
    residual_probs,
)

VOCAB_SIZE, NUM_DRAFTS = 3, 2


def distributions(seed: int, *shape: int, sparse: bool) -> Probs:
    generator = np.random.default_rng(seed)
    weights = generator.random(shape) + 0.01
    if sparse:
        weights = weights * (generator.random(shape) < 0.6)
        weights[..., 0] += 0.05
    probs: Probs = weights / weights.sum(-1, keepdims=True)
    return probs


def expected_tokens(law: ChainLaw, rule: str, chains: Ids, drawn: Probs) -> Probs:
    """[vocab] law of the first token of a round."""
    passes = np.nan_to_num(law.thresholds, nan=0.0)
    if rule == "chain":
        stops = (1 - passes[:, 0], passes[:, 0] * (1 - passes[:, 1]), passes[:, 0] * passes[:, 1])
    else:
        none = (1 - passes[:, 0]) * (1 - passes[:, 1])
        stops = (none, passes[:, 0] * (1 - passes[:, 1]), passes[:, 1])
    first = np.zeros(VOCAB_SIZE)
    residuals = np.nan_to_num(law.residuals, nan=0.0)
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
    chains = np.array(list(itertools.product(range(VOCAB_SIZE), repeat=NUM_DRAFTS)))
    of_target = np.broadcast_to(target, (len(chains), *target.shape))
    of_draft = np.broadcast_to(draft, (len(chains), *draft.shape))
    drawn = np.take_along_axis(of_draft, chains[..., None], -1)[..., 0].prod(-1)
    law = {"chain": chain_law, "block": block_law}[rule](of_target, of_draft, chains)

    first = expected_tokens(law, rule, chains, drawn)

    np.testing.assert_allclose(first, target[0], rtol=1e-9, atol=1e-12)


def test_a_draft_with_the_targets_law_is_always_accepted() -> None:
    target = distributions(1, NUM_DRAFTS + 1, VOCAB_SIZE, sparse=False)
    chain = np.array([2, 0])
    for rule in (chain_law, block_law):
        law = rule(target, target[:-1], chain)
        np.testing.assert_allclose(law.thresholds, np.ones(2))
        np.testing.assert_allclose(law.residuals[-1], target[-1])


def test_a_point_mass_is_accepted_with_the_targets_probability() -> None:
    target = np.array([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]])
    draft = np.array([[0.0, 1.0, 0.0]])
    law = chain_law(target, draft, np.array([1]))
    assert law.thresholds.tolist() == [0.5]
    assert law.residuals[0].tolist() == [0.5, 0.0, 0.5]


def test_an_empty_residual_is_the_targets_own_row() -> None:
    probs = np.array([0.25, 0.75])
    assert np.array_equal(residual_probs(probs, probs), probs)


def test_a_draft_over_a_few_tokens_is_one_over_all() -> None:
    dense = dense_probs(np.array([[3, 1]]), np.array([[0.75, 0.25]]), 5)
    assert dense.tolist() == [[0.0, 0.25, 0.0, 0.75, 0.0]]


@pytest.mark.parametrize(
    ("uniforms", "chain_len", "block_len"),
    [([0.4, 0.2, 0.9], 2, 2), ([0.6, 0.2, 0.1], 0, 3), ([0.6, 0.9, 0.9], 0, 0)],
)
def test_a_chain_stops_at_the_first_failure_and_a_block_at_the_last_success(
    uniforms: list[float], chain_len: int, block_len: int
) -> None:
    thresholds = np.full(3, 0.5)
    assert int(chain_accepted_len(thresholds, np.array(uniforms))) == chain_len
    assert int(block_accepted_len(thresholds, np.array(uniforms))) == block_len
