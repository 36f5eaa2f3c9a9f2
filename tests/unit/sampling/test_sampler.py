"""The sampler is a pure function of one row, and its Gumbel-max is exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.errors import EngineFailureError, InvalidRequestError
from slipstream.sampling.draw import Workspace, draw_best
from slipstream.sampling.noise import gumbel_at, gumbel_noise, noise_key
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError, goes_by_row
from slipstream.sampling.state import SamplingState, advance
from tests.support import sampling as oracle
from tests.support.native import native_kernels
from tests.support.words import started, text_of

VOCAB = 20_011  # odd, so that vector tails are met
PADDED = 20_032
EOS = (0, 7)
PROMPT = tuple(range(100, 180))
OUTPUT = (5, 9, 9, 150, 11)

MIXED = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.999),
    SamplingParams(top_k=40, min_p=0.01),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, min_tokens=20),
    SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(min_p=0.05, logit_bias={3: 5.0}, bad_words=(text_of(9), text_of(150, 11, 4))),
    SamplingParams(allowed_token_ids=tuple(range(0, VOCAB, 3)), top_p=0.95),
)


def request(params: SamplingParams, seed: int = 0, position: int = 85) -> RowRequest:
    state = started(params, PROMPT)
    for token in OUTPUT:
        state = advance(params, state, token)
    return RowRequest(params, state, seed, position)


def random_logits(num_rows: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, PADDED, generator=generator) * spread


def mixed_batch(num_rows: int) -> tuple[Tensor, list[RowRequest]]:
    requests = [request(MIXED[row % len(MIXED)], seed=row) for row in range(num_rows)]
    return random_logits(num_rows), requests


@pytest.fixture(params=["numpy", "amx", "portable"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """By the rule alone, and with native kernels of each instruction set."""
    isa = request.param
    return Sampler(VOCAB, EOS, None if isa == "numpy" else native_kernels(isa))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_row_has_the_same_token_whatever_is_computed_with_it(sampler: Sampler) -> None:
    logits, requests = mixed_batch(64)
    alone = [sampler.sample(logits[row : row + 1], [requests[row]])[0] for row in range(64)]
    assert sampler.sample(logits, requests) == alone
    for rows in ([3, 1, 2], list(reversed(range(64))), list(range(7, 40))):
        part = sampler.sample(logits[rows], [requests[row] for row in rows])
        assert part == [alone[row] for row in rows]


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.integers(0, 17), min_size=1, max_size=12))
def test_all_outputs_of_a_row_are_bitwise_independent_of_the_others(rows: list[int]) -> None:
    sampler = Sampler(VOCAB, EOS)
    logits, requests = mixed_batch(18)
    chosen = [requests[row] for row in rows]
    processed = sampler.processed(logits[rows], chosen)
    candidates = sampler.top_candidates(logits[rows], chosen, 5)
    for index, row in enumerate(rows):
        one = logits[row : row + 1].clone()
        assert torch.equal(processed[index], sampler.processed(one, [requests[row]])[0])
        alone = sampler.top_candidates(one, [requests[row]], 5)
        assert candidates.ids[index].tolist() == alone.ids[0].tolist()
        assert candidates.probs[index].tobytes() == alone.probs[0].tobytes()


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_does_not_matter(sampler: Sampler) -> None:
    logits, requests = mixed_batch(18)
    with_two = sampler.sample(logits, requests), sampler.processed(logits, requests)
    torch.set_num_threads(1)
    with_one = sampler.sample(logits, requests), sampler.processed(logits, requests)
    assert with_one[0] == with_two[0]
    assert torch.equal(with_one[1], with_two[1])


def test_where_a_row_lies_in_memory_does_not_matter(sampler: Sampler) -> None:
    logits, requests = mixed_batch(9)
    expected = sampler.processed(logits, requests), sampler.sample(logits, requests)
    for shift in (1, 3, 5, 17):
        moved = torch.empty(9 * PADDED + shift)[shift:].view(9, PADDED)
        moved.copy_(logits)
        assert torch.equal(sampler.processed(moved, requests), expected[0])
        assert sampler.sample(moved, requests) == expected[1]
    assert sampler.sample(logits.t().contiguous().t(), requests) == expected[1]


def test_the_logits_are_never_written(sampler: Sampler) -> None:
    logits, requests = mixed_batch(18)
    before = logits.clone()
    sampler.sample(logits, requests)
    sampler.processed(logits, requests)
    sampler.top_candidates(logits, requests, 3)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 30.0])
def test_pruning_draws_what_the_whole_row_of_noise_draws(spread: float) -> None:
    workspace = Workspace(VOCAB)
    rng = np.random.default_rng(1)
    noise = gumbel_noise(range(40), [9] * 40, VOCAB).numpy()
    for seed in range(40):
        row = (rng.normal(size=VOCAB) * spread).astype(np.float32)
        row -= row.max()
        scores = row.astype(np.float64) + noise[seed]
        order = np.argsort(-scores, kind="stable")[:6]
        best = draw_best(row, None, noise_key(seed, 9), 1, workspace)
        assert best.tolist() == order[:1].tolist()
        assert draw_best(row, None, noise_key(seed, 9), 6, workspace).tolist() == order.tolist()


def test_pruning_survives_a_row_with_one_overwhelming_token() -> None:
    workspace = Workspace(VOCAB)
    row = np.full(VOCAB, -100.0, dtype=np.float32)
    row[[17, 3000, 20_000]] = 0.0, -50.0, -np.inf
    scores = row.astype(np.float64) + gumbel_noise([5], [1], VOCAB).numpy()[0]
    order = np.argsort(-scores, kind="stable")[:8]
    assert draw_best(row, None, noise_key(5, 1), 8, workspace).tolist() == order.tolist()


def test_pruning_over_many_kept_tokens_draws_what_full_noise_draws() -> None:
    workspace = Workspace(VOCAB)
    rng = np.random.default_rng(2)
    row = rng.normal(size=VOCAB).astype(np.float32)
    row -= row.max()
    kept = np.flatnonzero(row > -4.0)
    assert kept.size > 5000
    for seed in range(30):
        scores = row[kept] + gumbel_at(seed, 2, kept).astype(np.float64)
        drawn = draw_best(row, kept, noise_key(seed, 2), 1, workspace)
        assert drawn.tolist() == [kept[scores.argmax()]]


EIGHTHS = st.integers(-32, 32).map(lambda value: value / 8)
TOKENS = st.integers(0, 11)


@st.composite
def small_rows(draw: st.DrawFn) -> oracle.Row:
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 8])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.6])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.03])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.3])),
        logit_bias=draw(st.dictionaries(TOKENS, EIGHTHS, max_size=2)),
        bad_words=tuple(
            text_of(*word)
            for word in draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=3))
        ),
        allowed_token_ids=draw(st.none() | st.lists(TOKENS, min_size=1, max_size=9).map(tuple)),
        min_tokens=draw(st.integers(0, 4)),
        stop_token_ids=tuple(draw(st.lists(TOKENS, max_size=2))),
    )
    return oracle.Row(
        logits=draw(st.lists(EIGHTHS, min_size=12, max_size=12)),
        params=params,
        prompt=draw(st.lists(TOKENS, max_size=5)),
        output=draw(st.lists(TOKENS, max_size=5)),
        seed=draw(st.integers(0, 2**64 - 1)),
        eos=(4,),
    )


@settings(max_examples=150, deadline=None)
@given(row=small_rows(), is_native=st.booleans())
def test_token_and_distribution_agree_with_the_oracle(row: oracle.Row, is_native: bool) -> None:
    sampler = Sampler(12, row.eos, native_kernels() if is_native else None)
    state = started(row.params, row.prompt)
    for token in row.output:
        state = advance(row.params, state, token)
    logits = torch.tensor([row.logits], dtype=torch.float32)
    requests = [RowRequest(row.params, state, row.seed, row.position)]
    if max(oracle.processed_logits(row)) == -np.inf:
        with pytest.raises(SamplingError, match="no token is left"):
            sampler.sample(logits, requests)
        return
    decision = oracle.decide(row)
    if decision.margin > 1e-4:
        assert sampler.sample(logits, requests) == [decision.token]
        assert sampler.top_candidates(logits, requests, 1).ids.tolist() == [[decision.token]]
        if row.params.temperature > 0.0:
            probs = torch.softmax(sampler.processed(logits, requests), dim=-1)[0]
            np.testing.assert_allclose(probs, decision.probs, atol=1e-5)


def test_greedy_takes_the_lowest_id_of_a_tie(sampler: Sampler) -> None:
    logits = torch.zeros(3, PADDED)
    logits[0, [19_000, 40, 77]] = 1.0
    logits[1, 5] = -1.0
    logits[2, [16, 15]] = 2.0
    greedy = request(SamplingParams(temperature=0.0))
    assert sampler.sample(logits, [greedy] * 3) == [40, 0, 15]


def test_greedy_ignores_seed_position_and_filters(sampler: Sampler) -> None:
    logits = random_logits(1).repeat(3, 1)
    requests = [
        request(SamplingParams(temperature=0.0), seed=1),
        request(SamplingParams(temperature=0.0, top_p=0.1, top_k=5, min_p=0.9), seed=2),
        request(SamplingParams(temperature=1e-9), seed=3, position=4),
    ]
    assert len(set(sampler.sample(logits, requests))) == 1


def test_padding_is_never_read(sampler: Sampler) -> None:
    logits, requests = mixed_batch(9)
    expected = sampler.sample(logits, requests)
    for filler in (1e30, float("nan"), float("inf")):
        logits[:, VOCAB:] = filler
        assert sampler.sample(logits, requests) == expected
    assert sampler.processed(logits, requests).shape == (9, VOCAB)


def test_a_row_of_nan_fails_alone(sampler: Sampler) -> None:
    logits, requests = mixed_batch(9)
    expected = sampler.sample(logits, requests)
    for poison in (float("nan"), float("inf")):
        poisoned = logits.clone()
        poisoned[2, 12_345] = poison
        outcomes = sampler.outcomes(poisoned, requests)
        failure = outcomes[2]
        assert isinstance(failure, SamplingError)
        assert failure.row == 2
        assert isinstance(failure.error, EngineFailureError)
        assert "not finite" in failure.message
        assert outcomes[:2] + outcomes[3:] == expected[:2] + expected[3:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parameters_that_leave_no_token_are_the_request_s_fault(
    sampler: Sampler, temperature: float
) -> None:
    params = SamplingParams(
        temperature=temperature, allowed_token_ids=(0, 7), min_tokens=1, top_p=0.5
    )
    row = RowRequest(params, SamplingState(), 0, 0)
    with pytest.raises(SamplingError, match="no token is left to draw") as caught:
        sampler.sample(random_logits(2), [request(SamplingParams()), row])
    assert caught.value.row == 1
    assert isinstance(caught.value.error, InvalidRequestError)


def test_logits_that_are_all_minus_infinity_are_the_model_s_fault(sampler: Sampler) -> None:
    with pytest.raises(SamplingError, match="not finite") as caught:
        sampler.sample(torch.full((1, PADDED), -torch.inf), [request(SamplingParams())])
    assert isinstance(caught.value.error, EngineFailureError)


def test_a_penalty_that_overflows_is_the_request_s_fault(sampler: Sampler) -> None:
    params = SamplingParams(repetition_penalty=1e-38)
    with pytest.raises(SamplingError, match="beyond float32") as caught:
        sampler.sample(torch.full((1, PADDED), 9.0), [request(params)])
    assert isinstance(caught.value.error, InvalidRequestError)


def test_an_unknown_token_fails_its_row_only(sampler: Sampler) -> None:
    bad = request(SamplingParams(logit_bias={VOCAB: 1.0}))
    outcomes = sampler.outcomes(random_logits(2), [bad, request(SamplingParams())])
    assert isinstance(outcomes[0], SamplingError)
    assert isinstance(outcomes[1], int)


def test_logits_that_do_not_fit_the_call_are_a_programming_error(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="as many rows"):
        sampler.sample(random_logits(2), [request(SamplingParams())])
    with pytest.raises(ValueError, match="fewer than the vocabulary"):
        sampler.sample(torch.zeros(1, 10), [request(SamplingParams())])


def test_no_rows_give_no_tokens(sampler: Sampler) -> None:
    assert sampler.sample(torch.zeros(0, PADDED), []) == []


def test_half_precision_logits_are_taken_as_float32(sampler: Sampler) -> None:
    logits, requests = mixed_batch(9)
    half = logits.bfloat16()
    assert sampler.sample(half, requests) == sampler.sample(half.float(), requests)


def test_the_first_candidate_is_the_token_that_is_drawn(sampler: Sampler) -> None:
    logits, requests = mixed_batch(36)
    candidates = sampler.top_candidates(logits, requests, 4)
    assert candidates.ids.shape == candidates.probs.shape == (36, 4)
    assert candidates.ids[:, 0].tolist() == sampler.sample(logits, requests)


def test_candidates_carry_their_probability_in_the_processed_distribution(
    sampler: Sampler,
) -> None:
    logits, requests = mixed_batch(18)
    candidates = sampler.top_candidates(logits, requests, 4)
    probs = torch.softmax(sampler.processed(logits, requests).double(), dim=-1).numpy()
    expected = np.take_along_axis(probs, candidates.ids, axis=1)
    np.testing.assert_allclose(candidates.probs, expected, rtol=1e-4)


def test_candidates_of_a_greedy_row_are_the_best_logits(sampler: Sampler) -> None:
    logits = random_logits(1)
    candidates = sampler.top_candidates(logits, [request(SamplingParams(temperature=0.0))], 5)
    assert candidates.ids[0].tolist() == logits[0, :VOCAB].topk(5).indices.tolist()


def test_a_row_with_few_tokens_left_pads_its_candidates(sampler: Sampler) -> None:
    params = [SamplingParams(allowed_token_ids=(3, 8), temperature=t) for t in (0.0, 1.0)]
    params.append(SamplingParams(top_k=2))
    candidates = sampler.top_candidates(random_logits(3), [request(each) for each in params], 4)
    assert (candidates.ids[:, :2] >= 0).all()
    assert (candidates.ids[:, 2:] == -1).all()
    assert (candidates.probs[:, 2:] == 0).all()
    np.testing.assert_allclose(candidates.probs.sum(axis=1), 1.0, rtol=1e-5)


def test_remembered_processors_do_not_grow_without_bound(sampler: Sampler) -> None:
    logits = random_logits(1)
    fresh = [request(SamplingParams(logit_bias={3: number / 100})) for number in range(600)]
    for each in fresh:
        sampler.sample(logits, [each])
    assert len(sampler._rule._prepared) <= 512
    again = Sampler(VOCAB, EOS)
    assert sampler.sample(logits, [fresh[0]]) == again.sample(logits, [fresh[0]])


@pytest.mark.parametrize(
    ("num_walks", "num_rows", "is_by_row"), [(1, 200, True), (2, 8, True), (2, 9, False)]
)
def test_few_maxima_or_those_of_one_walk_are_searched_row_by_row(
    num_walks: int, num_rows: int, is_by_row: bool
) -> None:
    greedy = SamplingParams(temperature=0.0)
    assert goes_by_row([greedy] * num_walks, num_rows) == is_by_row
    assert not goes_by_row([greedy] * (num_walks - 1) + [SamplingParams(temperature=1.0)], num_rows)
