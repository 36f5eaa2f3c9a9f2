"""Random numbers for verification by rejection: addressed, and independent of everything else."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.sampling.distribution import distribution, draw_at
from slipstream.sampling.noise import derive, gumbel_at
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import SamplingState
from slipstream.sampling.streams import Stream, stream_seed, uniform_at


def test_streams_starts_seeds_and_choices_all_have_numbers_of_their_own() -> None:
    seeds = {
        stream_seed(derive(seed, choice), stream, start)
        for seed in (0, 1, 2**64 - 1)
        for choice in (0, 1, 5)
        for stream in Stream
        for start in (0, 1, 2, 1000)
    }
    assert len(seeds) == 3 * 3 * 3 * 4
    assert not seeds & {derive(seed, choice) for seed in (0, 1, 2**64 - 1) for choice in range(9)}


def test_uniforms_are_uniform_and_never_at_an_end() -> None:
    uniforms = np.array([uniform_at(stream_seed(seed, Stream.COIN, 7), 9) for seed in range(4000)])
    assert uniforms.min() > 0.0
    assert uniforms.max() < 1.0
    counts = np.histogram(uniforms, bins=20, range=(0.0, 1.0))[0]
    assert float(((counts - 200.0) ** 2 / 200.0).sum()) < 19 + 4 * (2 * 19) ** 0.5


@pytest.mark.parametrize("stream", list(Stream))
def test_uniforms_do_not_follow_the_samplers_noise(stream: Stream) -> None:
    seeds = range(4000)
    uniforms = np.array([uniform_at(stream_seed(seed, stream, 3), 3) for seed in seeds])
    noise = np.array([gumbel_at(seed, 3, [5])[0] for seed in seeds])
    assert abs(np.corrcoef(uniforms, noise)[0, 1]) < 4.0 / len(seeds) ** 0.5


def test_a_draw_never_has_no_mass() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [draw_at(probs, uniform) for uniform in (1e-10, 0.2499, 0.25, 0.5, 1.0 - 1e-10)] == [
        1,
        1,
        3,
        3,
        3,
    ]
    assert draw_at(4.0 * probs, 1.0) == 3


def test_a_distribution_is_what_the_sampler_draws_from() -> None:
    params = SamplingParams(temperature=0.5, top_k=2, logit_bias={1: 1.0})
    row = np.array([1.0, 0.5, 0.0, 9.0], np.float32)
    request = RowRequest(params, SamplingState(), 0, 0)
    probs = distribution(Sampler(3, ()), row, request)
    weights = np.exp([2.0, 3.0])
    np.testing.assert_allclose(probs, [*(weights / weights.sum()), 0.0], rtol=1e-6)
