"""Gumbel noise as a pure function of (seed, position, token id).

Noise is addressed, not streamed: whoever asks for the noise of a token at a position, in whatever
order and batch, gets the same bits. A drafter that perturbs with it proposes what the target will
draw; a verifier draws what plain decoding draws.

    key  = two 32-bit words of splitmix64(splitmix64(seed) + position * odd constant)
    hash = two multiply-xorshift rounds over (token id ^ key word 0), key word 1 added in between
    v    = (hash + 0.5) / 2^32, in [2^-33, 1 - 2^-33]: never 0, never 1
    G    = -log(-log1p(-v)) in float64, rounded to float32; decreasing in the hash

For one key the hash permutes the 32-bit integers, so two tokens never carry the same hash.
Sources: Steele, Lea, Flood 2014 (splitmix64); Wellons, "Prospecting for Hash Functions"
(the multipliers of `lowbias32`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HashArray = npt.NDArray[np.uint32]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_CHOICE_STEP = 0xD1342543DE82EF95
_MULTIPLIER_1 = np.uint32(0x7FEB352D)
_MULTIPLIER_2 = np.uint32(0x846CA68B)
_SHIFT_15 = np.uint32(15)
_SHIFT_16 = np.uint32(16)


class NoiseKey(NamedTuple):
    """What (seed, position) contributes to a token's hash: two 32-bit words."""

    first: int
    second: int


def derive(seed: int, index: int) -> int:
    """Seed of choice `index` of a request with `seed`; choice 0 has the seed itself."""
    if index == 0:
        return seed
    return _mix64(_mix64(seed ^ _CHOICE_STEP) + index * _CHOICE_STEP)


def noise_key(seed: int, position: int) -> NoiseKey:
    """The key of one row: `position` is the index of the token being drawn.

    Args:
        seed: 64 bits.
        position: At least 0.
    """
    mixed = _mix64(_mix64(seed + _GOLDEN) + position * _GOLDEN)
    return NoiseKey(mixed >> 32, mixed & 0xFFFFFFFF)


def hash_tokens(
    key: NoiseKey,
    token_ids: HashArray,  # [tokens]
    out: HashArray,  # [tokens], written
    scratch: HashArray,  # [tokens], overwritten
) -> HashArray:
    """The 32-bit hash of each token id under `key`, in `out`, which is returned."""
    np.bitwise_xor(token_ids, np.uint32(key.first), out=out)
    np.right_shift(out, _SHIFT_16, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _MULTIPLIER_1, out=out)
    np.right_shift(out, _SHIFT_15, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.add(out, np.uint32(key.second), out=out)
    np.multiply(out, _MULTIPLIER_2, out=out)
    np.right_shift(out, _SHIFT_16, out=scratch)
    return np.bitwise_xor(out, scratch, out=out)


def gumbel(hashes: HashArray) -> FloatArray:
    """Gumbel(0, 1) noise of each hash, float32, finite: within [-3.14, 22.88].

    Computed in float64 and rounded once, so a last-bit difference between two implementations of
    the logarithm almost never reaches the result.
    """
    v = (hashes.astype(np.float64) + 0.5) * 2.0**-32
    return (-np.log(-np.log1p(-v))).astype(np.float32)


def gumbel_at(seed: int, position: int, token_ids: Sequence[int] | IntArray) -> FloatArray:
    """Noise of the given tokens at one position.

    Args:
        token_ids: [tokens] ids in the target's vocabulary.
    Returns: [tokens] float32.
    """
    ids = np.asarray(token_ids, dtype=np.uint32)
    return gumbel(hash_tokens(noise_key(seed, position), ids, np.empty_like(ids), ids.copy()))


def gumbel_noise(seeds: Sequence[int], positions: Sequence[int], vocab: int) -> Tensor:
    """Noise of whole rows.

    The sampler does not call this: it computes only the noise that can matter.

    Returns: [rows, vocab] float32, on the CPU.
    """
    token_ids = np.arange(vocab, dtype=np.uint32)
    noise = np.empty((len(seeds), vocab), dtype=np.float32)
    hashes, scratch = np.empty_like(token_ids), np.empty_like(token_ids)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        noise[row] = gumbel(hash_tokens(noise_key(seed, position), token_ids, hashes, scratch))
    return torch.from_numpy(noise)


def _mix64(value: int) -> int:
    """The finaliser of splitmix64: a bijection of the 64-bit integers."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
