"""The noise is a good hash, finite everywhere, and a function of (seed, position, token) only."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.noise import (
    HashArray,
    derive,
    gumbel,
    gumbel_at,
    gumbel_noise,
    hash_tokens,
    noise_key,
)
from tests.support import sampling as oracle

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**20)


def hashes(seed: int, position: int, token_ids: npt.NDArray[np.uint32]) -> HashArray:
    return hash_tokens(
        noise_key(seed, position), token_ids, np.empty_like(token_ids), np.empty_like(token_ids)
    )


def row_hashes(seed: int, position: int, vocab: int) -> HashArray:
    return hashes(seed, position, np.arange(vocab, dtype=np.uint32))


def chi_square(counts: npt.NDArray[np.int64]) -> float:
    """How many standard deviations a uniform chi-square statistic is from its mean."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = counts.size - 1
    return (statistic - degrees) / math.sqrt(2 * degrees)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, position=POSITIONS, token=st.integers(0, 300_000))
def test_hash_and_noise_are_the_documented_ones(seed: int, position: int, token: int) -> None:
    drawn = hashes(seed, position, np.array([token], dtype=np.uint32))
    assert int(drawn[0]) == oracle.hash32(seed, position, token)
    noise = float(gumbel_at(seed, position, [token])[0])
    assert noise == pytest.approx(oracle.gumbel(seed, position, token), rel=1e-6, abs=1e-7)


def test_noise_is_finite_at_both_ends_of_the_hash() -> None:
    ends = gumbel(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], dtype=np.uint32))
    assert np.isfinite(ends).all()
    assert list(ends) == sorted(ends, reverse=True)
    assert ends[0] == pytest.approx(33 * math.log(2), abs=1e-5)
    assert ends[-1] == pytest.approx(-math.log(33 * math.log(2)), abs=1e-5)


def test_noise_does_not_increase_with_the_hash() -> None:
    low, high = np.arange(50_000, dtype=np.uint32), np.uint32(2**32 - 50_000)
    for part in (low, low + high, low * np.uint32(85_899)):
        assert (np.diff(gumbel(part)) <= 0).all()


def test_noise_has_the_mean_and_variance_of_a_gumbel() -> None:
    noise = gumbel(row_hashes(7, 3, 1 << 20)).astype(np.float64)
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=5e-3)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=1e-2)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_hash_is_uniform_along_each_coordinate(shift: int) -> None:
    along_tokens = row_hashes(11, 5, 1 << 16)
    token = np.array([42], dtype=np.uint32)
    along_positions = np.concatenate([hashes(11, place, token) for place in range(1 << 13)])
    along_seeds = np.concatenate([hashes(seed, 5, token) for seed in range(1 << 13)])
    for drawn in (along_tokens, along_positions, along_seeds):
        counts = np.bincount((drawn >> np.uint32(shift)) & np.uint32(255), minlength=256)
        assert abs(chi_square(counts)) < 5


@pytest.mark.parametrize("neighbour", ["token", "position", "seed"])
def test_neighbours_are_independent(neighbour: str) -> None:
    size = 1 << 16
    first = row_hashes(11, 5, size)
    second = {
        "token": np.roll(first, 1),
        "position": row_hashes(11, 6, size),
        "seed": row_hashes(12, 5, size),
    }[neighbour]
    pair = (first >> np.uint32(28)) * np.uint32(16) + (second >> np.uint32(28))
    assert abs(chi_square(np.bincount(pair, minlength=256))) < 5
    correlation = np.corrcoef(gumbel(first), gumbel(second))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(size)


def test_seed_and_position_cannot_stand_in_for_each_other() -> None:
    keys = {noise_key(seed, position) for seed in range(100) for position in range(100)}
    assert len(keys) == 10_000


def test_each_input_bit_flips_half_of_the_output_bits() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 1 << 17, 2000).astype(np.uint32)
    base = hashes(99, 1234, ids)
    flips = [base ^ hashes(99 ^ (1 << bit), 1234, ids) for bit in range(64)]
    flips += [base ^ hashes(99, 1234 ^ (1 << bit), ids) for bit in range(20)]
    flips += [base ^ hashes(99, 1234, ids ^ np.uint32(1 << bit)) for bit in range(17)]
    shares = np.array(
        [[(flip >> np.uint32(out) & 1).mean() for out in range(32)] for flip in flips]
    )
    token_shares = shares[84:]
    assert abs(token_shares - 0.5).max() < 0.1
    # One key pair is one sample of the key's avalanche: only its average is meaningful.
    assert shares.mean() == pytest.approx(0.5, abs=0.01)


def test_key_bits_avalanche() -> None:
    rng = np.random.default_rng(1)
    samples = [(int(rng.integers(0, 2**63)), int(rng.integers(0, 2**17))) for _ in range(300)]
    token = np.array([17], dtype=np.uint32)
    for bit in (0, 1, 15, 31, 32, 47, 63):
        total = np.zeros(32)
        for seed, place in samples:
            flipped = int((hashes(seed, place, token) ^ hashes(seed ^ (1 << bit), place, token))[0])
            total += [(flipped >> out) & 1 for out in range(32)]
        assert abs(total / len(samples) - 0.5).max() < 5 * 0.5 / math.sqrt(len(samples))


def test_choice_zero_has_the_seed_itself_and_the_others_their_own() -> None:
    for seed in (0, 1, 2**64 - 1):
        derived = [derive(seed, index) for index in range(64)]
        assert derived[0] == seed
        assert len(set(derived)) == 64
        assert all(0 <= value < 2**64 for value in derived)


def test_choices_of_neighbouring_seeds_do_not_meet() -> None:
    derived = {derive(seed, index) for seed in range(64) for index in range(1, 64)}
    assert len(derived) == 64 * 63
    assert not derived & set(range(64))


def test_whole_rows_hold_the_noise_of_each_token() -> None:
    noise = gumbel_noise([3, 4], [10, 20], 1000).numpy()
    assert noise.shape == (2, 1000)
    np.testing.assert_array_equal(noise[0], gumbel_at(3, 10, list(range(1000))))
    np.testing.assert_array_equal(noise[1, [5, 999]], gumbel_at(4, 20, [5, 999]))


def test_noise_of_a_token_does_not_depend_on_where_it_stands_in_the_array() -> None:
    """A vectorised logarithm whose tail rounds otherwise would break the law of rows."""
    whole = row_hashes(5, 5, 600)
    expected = gumbel(whole)
    for start in range(70):
        for length in (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 500):
            part = gumbel(whole[start : start + length])
            np.testing.assert_array_equal(part, expected[start : start + length])


@pytest.mark.parametrize("ufunc", [np.exp, np.log, np.log1p])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementwise_functions_round_alike_at_every_index(ufunc: np.ufunc, dtype: type) -> None:
    rng = np.random.default_rng(2)
    scale = -30.0 if ufunc is np.exp else 1.0
    buffer = np.abs(rng.random(1024)).astype(dtype) * dtype(scale)
    whole = ufunc(buffer)
    for start in range(70):
        for length in (1, 3, 7, 9, 16, 31, 100, 513):
            part = ufunc(buffer[start : start + length])
            assert part.tobytes() == whole[start : start + length].tobytes()
            out: npt.NDArray[np.floating] = np.empty(length + 3, dtype=dtype)[3:]
            assert ufunc(buffer[start : start + length], out=out).tobytes() == part.tobytes()
