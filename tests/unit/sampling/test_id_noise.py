"""Noise of chosen tokens is the noise of the rule, up to its last bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.library import KernelLibrary
from slipstream.sampling.id_noise import IdNoise
from slipstream.sampling.noise import FloatArray, gumbel_at, noise_key
from tests.support.native import native_kernels

ISAS = ["avx512", "portable"]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> KernelLibrary:
    return native_kernels(request.param)


def by_rule(seeds: list[int], positions: list[int], token_ids: list[int]) -> FloatArray:
    rows = [gumbel_at(*key, token_ids) for key in zip(seeds, positions, strict=True)]
    return np.stack(rows)


@settings(max_examples=60, deadline=None)
@given(
    token_ids=st.lists(st.integers(0, 2**31), min_size=1, max_size=70),
    keys=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), min_size=1, max_size=3
    ),
    isa=st.sampled_from(ISAS),
)
def test_native_noise_is_that_of_the_rule(
    token_ids: list[int], keys: list[tuple[int, int]], isa: str
) -> None:
    seeds, positions = [seed for seed, _ in keys], [position for _, position in keys]
    noise = IdNoise(token_ids, native_kernels(isa)).rows(seeds, positions)
    np.testing.assert_allclose(noise, by_rule(seeds, positions, token_ids), rtol=0, atol=4e-6)


def test_native_noise_keeps_to_its_bound_over_many_tokens(kernels: KernelLibrary) -> None:
    token_ids = list(range(400_000))
    noise = IdNoise(token_ids, kernels).rows([5, 2**64 - 1], [0, 77])
    expected = by_rule([5, 2**64 - 1], [0, 77], token_ids)
    np.testing.assert_allclose(noise, expected, rtol=0, atol=4e-6)


def token_of_hash(value: int, seed: int, position: int) -> int:
    """The token id whose hash is `value`: every step of the hash can be undone."""
    key = noise_key(seed, position)
    value ^= value >> 16
    value = value * pow(0x846CA68B, -1, 2**32) % 2**32
    value = (value - key.second) % 2**32
    value ^= (value >> 15) ^ (value >> 30)
    value = value * pow(0x7FEB352D, -1, 2**32) % 2**32
    return (value ^ (value >> 16)) ^ key.first


def test_the_rarest_noise_is_that_of_the_rule(kernels: KernelLibrary) -> None:
    hashes = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 256, 2**32 - 2, 2**32 - 1]
    token_ids = [token_of_hash(value, 6, 9) for value in hashes]
    expected = by_rule([6], [9], token_ids)
    assert expected[0, 0] > 22.8
    assert expected[0, -1] < -3.1
    noise = IdNoise(token_ids, kernels).rows([6], [9])
    np.testing.assert_allclose(noise, expected, rtol=0, atol=4e-6)


def test_noise_without_kernels_is_the_rule_itself() -> None:
    noise = IdNoise([3, 9, 49_151], None).rows([1, 2], [7, 8])
    np.testing.assert_array_equal(noise, by_rule([1, 2], [7, 8], [3, 9, 49_151]))


def test_a_row_of_noise_does_not_depend_on_other_rows(kernels: KernelLibrary) -> None:
    source = IdNoise(range(37), kernels)
    together = source.rows([1, 2, 3], [4, 5, 6])
    np.testing.assert_array_equal(source.rows([2], [5]), together[1:2])


def test_no_rows_give_no_noise(kernels: KernelLibrary) -> None:
    assert IdNoise([1, 2], kernels).rows([], []).shape == (0, 2)
