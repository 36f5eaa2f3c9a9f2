"""The decoder's parts against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.models.hparams import Activation, RotaryParams
from slipstream.models.layers.activation import gated_activation
from slipstream.models.layers.linear import LinearFactory
from slipstream.models.layers.norm import RmsNorm
from slipstream.models.layers.rotary import RotaryTable, Rotation, frequencies

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [16, 24, 96, 576])
def test_the_norm_divides_by_the_root_mean_square(size: int) -> None:
    x, weight = random(5, size) * 3, random(size, seed=1)

    normed = RmsNorm(weight, 1e-5, is_zero_centred=False)(x)

    expected = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    assert torch.allclose(normed, expected, rtol=1e-5, atol=1e-6)


def test_a_zero_centred_weight_is_one_more() -> None:
    x, weight = random(5, 64), random(64, seed=1)

    normed = RmsNorm(weight, 1e-6, is_zero_centred=True)(x)

    assert torch.equal(normed, RmsNorm(weight + 1, 1e-6, is_zero_centred=False)(x))


def test_the_norm_leaves_its_input_alone() -> None:
    x = random(5, 64)
    before = x.clone()

    RmsNorm(torch.ones(64), 1e-6, is_zero_centred=False)(x)

    assert torch.equal(x, before)


@pytest.mark.parametrize("size", [16, 24, 100, 576, 2048])
def test_a_normed_row_has_the_same_bits_whatever_rows_go_with_it(size: int) -> None:
    norm = RmsNorm(random(size, seed=1), 1e-5, is_zero_centred=False)
    x = random(257, size) * torch.exp(random(257, size, seed=2))
    whole = norm(x)

    for start, stop in ((0, 1), (3, 4), (5, 7), (10, 26), (0, 129), (256, 257)):
        assert torch.equal(norm(x[start:stop]), whole[start:stop])


@DTYPES
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_the_gate_is_activated_and_multiplies(kind: Activation, dtype: torch.dtype) -> None:
    gate_up = (random(7, 2 * 40) * 4).to(dtype)

    gated = gated_activation(kind, dtype)(gate_up)

    gate, up = gate_up.double().chunk(2, -1)
    activated = (
        functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
    )
    tolerance = 1e-6 if dtype == torch.float32 else 2**-6
    assert gated.dtype == dtype
    assert torch.allclose(gated.double(), activated * up, rtol=tolerance, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", [7, 40, 1536])
def test_an_activated_row_has_the_same_bits_whatever_rows_go_with_it(
    kind: Activation, dtype: torch.dtype, size: int
) -> None:
    activation = gated_activation(kind, dtype)
    gate_up = (random(50, 2 * size) * 3).to(dtype)
    whole = activation(gate_up)

    for start, stop in ((0, 1), (3, 4), (5, 8), (10, 27), (49, 50)):
        assert torch.equal(activation(gate_up[start:stop]), whole[start:stop])


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_extreme_gates_stay_finite(kind: Activation) -> None:
    gate = torch.tensor([[-1e4, -100.0, 100.0, 1e4]])

    gated = gated_activation(kind, torch.float32)(torch.cat((gate, torch.ones(1, 4)), -1))

    assert torch.allclose(gated, torch.tensor([[0.0, 0.0, 100.0, 1e4]]), atol=1e-6)


def test_rotation_turns_pairs_of_halves_by_position() -> None:
    x = random(2, 1, 8)
    table = RotaryTable(RotaryParams(10000.0), 8)

    rotated = Rotation(*table.angles(torch.tensor([0, 5]), 5)).apply(x)

    assert torch.equal(rotated[0], x[0])
    for pair in range(4):
        angle = 5 / 10000 ** (2 * pair / 8)
        a, b = x[1, 0, pair].item(), x[1, 0, pair + 4].item()
        turned = (
            a * math.cos(angle) - b * math.sin(angle),
            b * math.cos(angle) + a * math.sin(angle),
        )
        assert rotated[1, 0, [pair, pair + 4]].tolist() == pytest.approx(turned, abs=1e-6)


def test_angles_do_not_depend_on_how_the_table_grew() -> None:
    at_once, stepwise = (RotaryTable(RotaryParams(500000.0), 64) for _ in range(2))
    positions = torch.tensor([0, 1023, 1024, 5000])

    for last in (0, 1500, 2500):
        stepwise.angles(torch.tensor([last]), last)

    for a, b in zip(at_once.angles(positions, 5000), stepwise.angles(positions, 5000), strict=True):
        assert torch.equal(a, b)


def test_linear_scaling_divides_every_frequency() -> None:
    plain = frequencies(RotaryParams(10000.0), 32)

    assert np.allclose(frequencies(RotaryParams(10000.0, "linear", 4.0), 32), plain / 4)


def test_llama3_scaling_keeps_short_waves_and_divides_long_ones() -> None:
    params = RotaryParams(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)

    ratio = frequencies(params, 128) / frequencies(RotaryParams(500000.0), 128)

    assert np.allclose(ratio[:20], 1.0)
    assert np.allclose(ratio[-20:], 1 / 8)
    assert (np.diff(ratio) <= 1e-6).all()


@DTYPES
def test_a_linear_multiplies_and_adds_its_bias(dtype: torch.dtype) -> None:
    weight, bias, x = random(48, 64), random(48, seed=1), random(16, 64, seed=2).to(dtype)

    y = LinearFactory(dtype).make(weight, bias)(x)

    expected = x.double() @ weight.to(dtype).double().t() + bias.to(dtype).double()
    assert y.dtype == dtype
    assert torch.allclose(
        y.double(), expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-2
    )


@DTYPES
@pytest.mark.parametrize(("num_out", "num_in"), [(192, 64), (576, 1536), (200, 96)])
def test_admitted_row_counts_share_one_reduction_order(
    num_out: int, num_in: int, dtype: torch.dtype
) -> None:
    factory = LinearFactory(dtype)
    linear = factory.make(random(num_out, num_in, seed=3))
    x = (random(512, num_in) * 2).to(dtype)
    counts = factory.admitted((linear,))

    assert {4, 8, 16} <= set(counts)
    reference = torch.cat([linear(part) for part in x.split_with_sizes([16] * 32)])
    for count in counts:
        assert torch.equal(linear(x[:count]), reference[:count])
        assert torch.equal(linear(x[-count:]), reference[-count:])
