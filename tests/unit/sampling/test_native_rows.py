"""Native kernels draw what the rule in numpy draws, or say that they are not sure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import EngineFailureError
from slipstream.sampling.native_rows import DrawnRow, NativeRows, TokenSubset
from slipstream.sampling.noise import FloatArray
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.row_rule import RowRule
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.sampling.state import SamplingState, advance
from tests.support.native import native_kernels
from tests.support.words import started, text_of

ISAS = ["avx512", "portable"]
SIZES = [1, 3, 16, 63, 64, 65, 300, 1000]


def request_after(
    params: SamplingParams, size: int, rng: np.random.Generator, seed: int
) -> RowRequest:
    """A request in the middle of an answer."""
    state = started(params, rng.integers(0, size, 6).tolist())
    for token in rng.integers(0, size, 4).tolist():
        state = advance(params, state, token)
    return RowRequest(params, state, seed, int(rng.integers(0, 5000)))


def random_row(kind: str, size: int, rng: np.random.Generator) -> FloatArray:
    """Logits of one kind."""
    row = rng.normal(size=size) * 4
    if kind == "ties":
        row = np.round(row / 4)
    elif kind == "constant":
        row[:] = 2.5
    elif kind == "masked":
        row[rng.random(size) < 0.9] = -np.inf
        row[rng.integers(size)] = 1.0
    elif kind == "steep":
        row *= 1000.0
    elif kind == "huge":
        row *= 1e36
    return row.astype(np.float32)


KINDS = ["normal", "ties", "constant", "masked", "steep", "huge"]


@st.composite
def any_params(draw: st.DrawFn, size: int) -> SamplingParams:
    """Every parameter that shapes a distribution."""
    tokens = st.integers(0, size - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-5, 0.01, 0.5, 1.0, 1.7, 100.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 17, 400, size, size + 3])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.999999, 0.95, 0.5, 0.01, 1e-9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-6, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -0.5])),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from([-100.0, 0.1, 100.0]), max_size=3)),
        bad_words=tuple(
            text_of(*word)
            for word in draw(st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=3))
        ),
        allowed_token_ids=draw(
            st.sampled_from([None, None, tuple(range(0, size, 2)), (0, size - 1)])
        ),
        min_tokens=draw(st.sampled_from([0, 0, 20])),
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_native_draw_is_the_rule_s(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    row = random_row(data.draw(st.sampled_from(KINDS)), size, rng)
    params = data.draw(any_params(size))
    request = request_after(params, size, rng, data.draw(st.integers(0, 2**64 - 1)))
    rule = RowRule(size, (0,))
    native = NativeRows(native_kernels(data.draw(st.sampled_from(ISAS))), size)
    asked = DrawnRow(0, request, rule.processors(params))
    (drawn,) = native.draw(row[None], [asked])
    if drawn:
        assert drawn == [rule.draw(row, request)]
    places, probs = native.best(row[None], [asked], 4)
    if places[0, 0] >= 0:
        best = rule.best(row, request, 4)
        assert places[0][places[0] >= 0].tolist() == best.ids.tolist()
        np.testing.assert_allclose(probs[0, : best.ids.size], best.probs, rtol=2e-5, atol=1e-30)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_penalties_are_the_rule_s_to_the_bit(data: st.DataObject) -> None:
    """A greedy draw is the highest of the processed logits; all but one are put out of its way."""
    size = data.draw(st.sampled_from([3, 65, 300]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5, -0.3])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.5, 0.7])),
    )
    row = random_row(data.draw(st.sampled_from(["normal", "ties", "masked"])), size, rng)
    request = request_after(params, size, rng, 0)
    rule = RowRule(size, ())
    processed = rule.processed(row, request).copy()
    for token in request.state.output_counts:
        # Two tokens that nobody has seen stand on either side of the processed logit.
        free = [i for i in range(size) if not _is_seen(i, request)][:1]
        if not free or not np.isfinite(processed[token]):
            continue
        rows = np.full((3, size), -np.inf, np.float32)
        rows[:, token] = row[token]
        rows[0, free[0]] = np.nextafter(processed[token], np.float32(-np.inf))
        rows[1, free[0]] = np.nextafter(processed[token], np.float32(np.inf))
        rows[2, free[0]] = processed[token]
        asked = [DrawnRow(number, request, rule.processors(params)) for number in range(3)]
        native = NativeRows(native_kernels(data.draw(st.sampled_from(ISAS))), size)
        assert native.draw(rows, asked) == [[token], [free[0]], [min(token, free[0])]]


def _is_seen(token: int, request: RowRequest) -> bool:
    return token in request.state.prompt_tokens or token in request.state.output_counts


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=2.0),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=3.0, top_p=0.8),
        SamplingParams(top_k=50),
        SamplingParams(top_k=2000, top_p=0.95, min_p=1e-4),
    ],
)
def test_a_native_draw_is_nearly_always_sure(params: SamplingParams, isa: str) -> None:
    size, num_rows = 5003, 400
    rule, native = RowRule(size, ()), NativeRows(native_kernels(isa), size)
    rng = np.random.default_rng(3)
    logits = (rng.normal(size=(num_rows, size)) * 3).astype(np.float32)
    requests = [RowRequest(params, SamplingState(), seed, 7) for seed in range(num_rows)]
    asked = [
        DrawnRow(row, request, rule.processors(params)) for row, request in enumerate(requests)
    ]
    drawn = native.draw(logits, asked)
    for row, request, tokens in zip(logits, requests, drawn, strict=True):
        assert tokens in ([], [rule.draw(row, request)])
    assert sum(not tokens for tokens in drawn) <= 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_rows_without_a_finite_best_logit_are_left_to_the_rule(isa: str, poison: float) -> None:
    kernels = native_kernels(isa)
    sampler = Sampler(200, (), kernels)
    for params in (SamplingParams(temperature=0.0), SamplingParams()):
        logits = np.zeros((2, 200), np.float32)
        logits[0, 131 if poison > 0 or np.isnan(poison) else slice(None)] = poison
        requests = [RowRequest(params, SamplingState(), 1, 1)] * 2
        failure, token = sampler.draw(logits, [0, 1], requests)
        assert isinstance(failure, SamplingError)
        assert isinstance(failure.error, EngineFailureError)
        assert isinstance(token, int)


@pytest.mark.parametrize("isa", ISAS)
def test_equal_scores_are_left_to_the_rule(isa: str) -> None:
    """At a logit of 1e9 and temperature 1e-5 no noise tells two equal tokens apart."""
    row = np.full((1, 100), -1e9, np.float32)
    row[0, [40, 41]] = 1e9
    rule = RowRule(100, ())
    params = SamplingParams(top_k=2)
    request = RowRequest(params, SamplingState(), 5, 5)
    asked = DrawnRow(0, request, rule.processors(params))
    native = NativeRows(native_kernels(isa), 100)
    assert native.draw(row, [asked]) == [[rule.draw(row[0], request)]]
    places, _ = native.best(row, [asked], 2)
    assert sorted(places[0].tolist()) == [40, 41]


@pytest.mark.parametrize("isa", ISAS)
def test_greedy_takes_the_first_of_equal_logits(isa: str) -> None:
    native, rule = NativeRows(native_kernels(isa), 1000), RowRule(1000, ())
    params = SamplingParams(temperature=0.0)
    rows = np.zeros((3, 1000), np.float32)
    rows[0, [999, 640, 641]] = 1.0
    rows[1, 0] = -0.0
    rows[2, :] = -np.inf
    rows[2, 998] = -3e38
    request = RowRequest(params, SamplingState(), 0, 0)
    asked = [DrawnRow(row, request, rule.processors(params)) for row in range(3)]
    assert native.draw(rows, asked) == [[640], [0], [998]]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_candidates_among_some_tokens_are_those_of_a_row_without_the_others(
    data: st.DataObject,
) -> None:
    size = 300
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ids = np.flatnonzero(rng.random(size) < data.draw(st.sampled_from([0.02, 0.3, 1.0])))
    ids = ids if ids.size else np.array([7])
    subset = TokenSubset(ids, size)
    params = data.draw(any_params(size))
    request = request_after(params, size, rng, data.draw(st.integers(0, 2**64 - 1)))
    part = torch.from_numpy(random_row("normal", ids.size, rng))[None]
    whole = torch.full((1, size), -torch.inf)
    whole[0, torch.from_numpy(ids)] = part[0]
    rule, native = Sampler(size, (0,)), Sampler(size, (0,), native_kernels())
    try:
        expected = rule.top_candidates(whole, [request], 5)
    except SamplingError:
        with pytest.raises(SamplingError):
            native.top_candidates(part, [request], 5, subset)
        return
    for sampler in (rule, native):
        found = sampler.top_candidates(part, [request], 5, subset)
        assert found.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(found.probs, expected.probs, rtol=2e-5, atol=1e-30)


def test_a_subset_needs_ascending_ids_of_the_vocabulary() -> None:
    for ids in ([], [3, 3], [4, 2], [-1, 2], [2, 10]):
        with pytest.raises(ValueError, match="ascending"):
            TokenSubset(ids, 10)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_p=0.9)])
def test_a_walk_follows_the_nodes_that_carry_what_is_drawn(
    isa: str, params: SamplingParams
) -> None:
    rng = np.random.default_rng(8)
    logits = (rng.normal(size=(9, 130)) * 3).astype(np.float32)
    rule, native = RowRule(130, ()), NativeRows(native_kernels(isa), 130)

    def drawn_at(row: int, depth: int) -> int:
        return rule.draw(logits[row], RowRequest(params, SamplingState(), 4, 20 + depth))

    first = drawn_at(2, 0)
    second = drawn_at(2 + 1 + 1, 1)
    third = drawn_at(2 + 1 + 4, 2)
    tokens = [(first + 1) % 130, first, second, (second + 1) % 130, second]
    nodes = np.array([tokens, [-1, -1, 0, 1, 1]], np.int32)
    asked = DrawnRow(2, RowRequest(params, SamplingState(), 4, 20), rule.processors(params), nodes)
    assert native.draw(logits, [asked, asked]) == [[first, second, third]] * 2


def test_many_rows_may_follow_few_rows_with_many_drafts() -> None:
    size, num_rows = 64, 60
    rule, native = RowRule(size, ()), NativeRows(native_kernels("portable"), size)
    params = SamplingParams(temperature=1.0)
    requests = [RowRequest(params, SamplingState(), seed, 7) for seed in range(num_rows)]
    logits = np.random.default_rng(3).normal(size=(num_rows, size)).astype(np.float32)
    nodes = np.array([[1] * 15, range(-1, 14)], np.int32)
    drafted = [DrawnRow(0, request, rule.processors(params), nodes) for request in requests[:20]]
    native.draw(np.repeat(logits[:1], 16, 0), drafted)
    plain = [
        DrawnRow(row, request, rule.processors(params)) for row, request in enumerate(requests)
    ]
    expected = [[rule.draw(row, request)] for row, request in zip(logits, requests, strict=True)]
    assert native.draw(logits, plain) == expected
    assert native.best(logits, plain, 2)[0].shape == (num_rows, 2)


def test_the_number_of_threads_and_rows_does_not_matter() -> None:
    rng = np.random.default_rng(9)
    logits = (rng.normal(size=(70, 900)) * 3).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2)
    requests = [request_after(params, 900, rng, seed) for seed in range(70)]
    sampler = Sampler(900, (), native_kernels())
    alone = [sampler.draw(logits, [row], [requests[row]])[0] for row in range(70)]
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        assert sampler.draw(logits, range(70), requests) == alone
