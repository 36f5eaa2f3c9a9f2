"""Random numbers beside the sampler's own noise, for verification by rejection.

They are addressed as the noise is: a pure function of (seed, which stream, where the draft starts,
position). Every draft has streams of its own, since it starts behind another token than all drafts
before it. So nothing that an earlier draft drew and threw away tells anything about this one.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from slipstream.sampling.noise import derive, hash_tokens, noise_key

_FIRST_STREAM = 2**32  # the choices of a request are derived from its seed too, and far fewer


class Stream(IntEnum):
    """What the numbers are for; streams are independent of each other and of the noise."""

    DRAFT = 0
    COIN = 1
    RESIDUAL = 2


def stream_seed(seed: int, stream: Stream, start: int) -> int:
    """Seed of one stream of one draft.

    Args:
        seed: Of the request's choice.
        start: Position of the first token that the draft is about.
    """
    return derive(derive(seed, _FIRST_STREAM + stream), start + 1)


def uniform_at(seed: int, position: int) -> float:
    """A number in (0, 1), a multiple of 2^-33; never 0, never 1."""
    token = np.zeros(1, np.uint32)
    hashed = hash_tokens(noise_key(seed, position), token, np.empty_like(token), token.copy())
    return (float(hashed[0]) + 0.5) * 2.0**-32
