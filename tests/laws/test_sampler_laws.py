"""The laws that losslessness stands on.

Drawn tokens follow the exact distribution; the same (row, params, state, seed, position) gives
the same token; sampling along a tree is sampling plainly.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.sampling.noise import derive, gumbel_noise
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import SamplingState, advance
from slipstream.speculation.tree import ROOT, DraftTree
from tests.support import sampling as oracle
from tests.support.words import started, text_of

LOGITS = [2.0, 1.5, 1.0, 1.0, 0.0, -0.5, -1.0, -3.0]
PROMPT = (1, 2, 5)
OUTPUT = (0, 0, 4)
NUM_DRAWS = 20_000


def deviations(counts: npt.NDArray[np.int64], probs: list[float]) -> float:
    """How many standard deviations a chi-square statistic lies above its mean."""
    expected = np.array(probs) * counts.sum()
    possible = expected > 0
    assert counts[~possible].sum() == 0, "a token of probability 0 was drawn"
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    degrees = max(int(possible.sum()) - 1, 1)
    return float((statistic - degrees) / math.sqrt(2 * degrees))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.8),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.85, min_p=0.05),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(presence_penalty=0.8, frequency_penalty=0.6),
        SamplingParams(logit_bias={7: 3.0}, bad_words=(text_of(1), text_of(0, 4, 3))),
        SamplingParams(allowed_token_ids=(0, 3, 6), min_tokens=9, stop_token_ids=(3,)),
    ],
)
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_drawn_tokens_follow_the_exact_distribution(params: SamplingParams, vary: str) -> None:
    state = started(params, PROMPT)
    for token in OUTPUT:
        state = advance(params, state, token)
    row = oracle.Row(LOGITS, params, PROMPT, OUTPUT)
    probs, _ = oracle.filtered_probs(oracle.processed_logits(row), params)
    num_draws = NUM_DRAWS if vary == "seed" else NUM_DRAWS // 4
    requests = [
        RowRequest(params, state, index if vary == "seed" else 1, 6 if vary == "seed" else index)
        for index in range(num_draws)
    ]
    logits = torch.tensor(LOGITS).expand(num_draws, -1)
    drawn = Sampler(len(LOGITS), ()).sample(logits, requests)
    assert deviations(np.bincount(drawn, minlength=len(LOGITS)), probs) < 5


def test_choices_of_one_request_follow_the_exact_distribution() -> None:
    params = SamplingParams()
    requests = [RowRequest(params, SamplingState(), derive(5, index), 0) for index in range(8000)]
    drawn = Sampler(8, ()).sample(torch.tensor(LOGITS).expand(8000, -1), requests)
    probs = torch.softmax(torch.tensor(LOGITS, dtype=torch.float64), 0).tolist()
    assert deviations(np.bincount(drawn, minlength=8), probs) < 5


def test_pairs_of_consecutive_tokens_are_independent() -> None:
    params, logits = SamplingParams(), torch.tensor(LOGITS[:4])
    sampler = Sampler(4, ())
    pairs = np.zeros(16, dtype=np.int64)
    for seed in range(8000):
        requests = [RowRequest(params, SamplingState(), seed, position) for position in (3, 4)]
        first, second = sampler.sample(logits.expand(2, -1), requests)
        pairs[first * 4 + second] += 1
    probs = torch.softmax(logits.double(), 0)
    assert deviations(pairs, torch.outer(probs, probs).flatten().tolist()) < 5


def test_drawing_over_a_large_vocabulary_follows_the_exact_distribution() -> None:
    """The pruned path: 4096 tokens in 16 groups of known probability."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(4096, generator=generator) * 3
    probs = torch.softmax(logits.double(), 0).reshape(16, 256).sum(1).tolist()
    sampler, params = Sampler(4096, ()), SamplingParams()
    requests = [RowRequest(params, SamplingState(), seed, 2) for seed in range(10_000)]
    drawn = np.array(sampler.sample(logits.expand(10_000, -1), requests))
    assert deviations(np.bincount(drawn // 256, minlength=16), probs) < 5


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 100_000),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    size=st.sampled_from([2, 64, 2047, 5000]),
)
def test_drawing_is_gumbel_max(seed: int, position: int, temperature: float, size: int) -> None:
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed % 1000)) * 4
    params = SamplingParams(temperature=temperature)
    (drawn,) = Sampler(size, ()).sample(
        logits, [RowRequest(params, SamplingState(), seed, position)]
    )
    noise = gumbel_noise([seed], [position], size)
    scores = (logits.double() / temperature + noise.double())[0]
    best_two = scores.topk(2).values
    if float(best_two[0] - best_two[1]) > 1e-4:
        assert drawn == int(scores.argmax())


def test_the_same_arguments_give_the_same_token_at_any_time() -> None:
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=0.9, top_p=0.95)
    sampler = Sampler(3000, ())
    first = [
        sampler.sample(logits, [RowRequest(params, SamplingState(), seed, 3)])[0]
        for seed in range(50)
    ]
    sampler.sample(logits * 2, [RowRequest(SamplingParams(), SamplingState(), 1, 1)])
    requests = [RowRequest(params, SamplingState(), seed, 3) for seed in range(50)]
    assert Sampler(3000, ()).sample(logits.expand(50, -1), requests) == first
    assert len(set(first)) > 10


VOCAB = 24


def model_row(tokens: tuple[int, ...]) -> Tensor:
    """[vocab] logits of a small scripted model: a function of the last three tokens."""
    seed = hash(tokens[-3:]) % 2**31
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def decode_plainly(params: SamplingParams, prompt: tuple[int, ...], length: int) -> list[int]:
    sampler = Sampler(VOCAB, (0,))
    state, tokens = started(params, prompt), list(prompt)
    for _ in range(length):
        row = RowRequest(params, state, params.seed, len(tokens))
        (token,) = sampler.sample(model_row(tuple(tokens))[None], [row])
        state = advance(params, state, token)
        tokens.append(token)
    return tokens[len(prompt) :]


def decode_along_trees(
    params: SamplingParams, prompt: tuple[int, ...], length: int, rng: np.random.Generator
) -> tuple[list[int], int]:
    """Tokens, and how many of them a draft had guessed."""
    sampler = Sampler(VOCAB, (0,))
    state, tokens, num_accepted = started(params, prompt), list(prompt), 0
    while len(tokens) < len(prompt) + length:
        tree = random_tree(rng)
        paths = [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(len(tree))]
        rows = {ROOT: model_row(tuple(tokens))}
        rows |= {node: model_row((*tokens, *path)) for node, path in enumerate(paths)}
        node: int | None = ROOT
        while node is not None:
            request = RowRequest(params, state, params.seed, len(tokens))
            (token,) = sampler.sample(rows[node][None], [request])
            state = advance(params, state, token)
            tokens.append(token)
            node = tree.children(node).get(token)
            num_accepted += node is not None
    return tokens[len(prompt) : len(prompt) + length], num_accepted


def random_tree(rng: np.random.Generator) -> DraftTree:
    edges: dict[tuple[int, int], int] = {}
    for _ in range(40):
        parent = int(rng.integers(-1, len(edges))) if rng.random() < 0.5 else ROOT
        edges.setdefault((parent, int(rng.integers(VOCAB))), len(edges))
    parents, tokens = zip(*edges, strict=True)
    sources = (frozenset({"random"}),) * len(edges)
    return DraftTree(tokens, parents, (0.5,) * len(edges), sources)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=3),
        SamplingParams(temperature=0.7, top_p=0.9, seed=4),
        SamplingParams(temperature=0.0, repetition_penalty=1.4, min_tokens=30),
        SamplingParams(
            repetition_penalty=1.2,
            presence_penalty=0.5,
            frequency_penalty=0.4,
            bad_words=(text_of(3), text_of(4, 5), text_of(6, 7, 8)),
            min_tokens=20,
            top_k=10,
            seed=5,
        ),
    ],
)
def test_sampling_along_any_tree_is_sampling_plainly(params: SamplingParams) -> None:
    prompt = (1, 2, 3)
    plain = decode_plainly(params, prompt, 60)
    for tree_seed in range(4):
        rng = np.random.default_rng(tree_seed)
        tokens, num_accepted = decode_along_trees(params, prompt, 60, rng)
        assert tokens == plain
        assert 10 < num_accepted < 60


def test_a_drafter_with_the_target_s_noise_agrees_more_often_than_a_greedy_one() -> None:
    generator = torch.Generator().manual_seed(6)
    target = torch.randn(400, 2000, generator=generator) * 2
    draft = target + torch.randn(400, 2000, generator=generator) * 0.3
    sampler, params = Sampler(2000, ()), SamplingParams()
    requests = [RowRequest(params, SamplingState(), seed, 9) for seed in range(400)]
    drawn = np.array(sampler.sample(target, requests))
    proposed = sampler.top_candidates(draft, requests, 4).ids
    shared = (proposed[:, 0] == drawn).mean()
    greedy = (draft.argmax(dim=1).numpy() == drawn).mean()
    assert shared > greedy + 0.3
    assert (proposed == drawn[:, None]).any(axis=1).mean() > shared
