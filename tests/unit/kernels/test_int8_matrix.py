"""Products with 8-bit inputs: the bits of their twin, whatever rows, threads or instructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kernels.twins import int8_twin, matrix_twin, quantise
from slipstream.weights.gguf_blocks import QuantizedTensor
from tests.support.blocks import random_blocks
from tests.support.native import native_kernels

_FORMATS = ("Q8_0", "Q4_0", "Q4_1")
_ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64)


pytestmark = pytest.mark.usefixtures("one_thread")


def random_rows(num_rows: int, num_in: int) -> Tensor:
    """Rows whose blocks differ in size by many powers of two; some blocks are zero."""
    generator = torch.Generator().manual_seed(num_in)
    rows = torch.randn(num_rows, num_in // 32, 32, generator=generator)
    powers = torch.randint(-12, 13, (num_rows, num_in // 32, 1), generator=generator)
    rows *= 2.0**powers
    rows[powers.expand_as(rows) == 0] = 0
    return rows.view(num_rows, num_in).bfloat16()


def int8_matrix(
    library: KernelLibrary, *parts: QuantizedTensor | Tensor, bias: Tensor | None = None
) -> PackedMatrix:
    return PackedMatrix(library, parts, bias, "int8")


def multiply(matrix: PackedMatrix, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return matrix.multiply(x, torch.empty(len(x), matrix.shape[0], dtype=dtype))


@pytest.mark.parametrize(("num_in", "num_out"), [(32, 1), (96, 37), (576, 80), (1536, 24)])
@pytest.mark.parametrize("name", _FORMATS)
def test_any_number_of_rows_gives_the_bits_of_the_twin(
    library: KernelLibrary, name: str, num_in: int, num_out: int
) -> None:
    stored, x = random_blocks(name, num_out, num_in), random_rows(64, num_in)
    matrix, expected = int8_matrix(library, stored), int8_twin(x, stored)
    for count in _ROW_COUNTS:
        start = 64 - count
        assert torch.equal(multiply(matrix, x[start:]), expected[start:]), count


@pytest.mark.parametrize("name", _FORMATS)
def test_512_rows_are_those_of_512_calls_with_one(library: KernelLibrary, name: str) -> None:
    x, matrix = random_rows(512, 96), int8_matrix(library, random_blocks(name, 48, 96))
    alone = torch.cat([multiply(matrix, row[None]) for row in x])
    for count in (512, 511, 128, 100):
        assert torch.equal(multiply(matrix, x[:count]), alone[:count])


@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize("name", _FORMATS)
def test_threads_change_no_bit(library: KernelLibrary, name: str, num_threads: int) -> None:
    x, matrix = random_rows(40, 576), int8_matrix(library, random_blocks(name, 200, 576))
    expected = multiply(matrix, x)
    torch.set_num_threads(num_threads)
    for count in (1, 3, 4, 5, 7, 16, 40):
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("isa", ["amx", "avx512_bf16", "avx512", "portable"])
@given(
    name=st.sampled_from(_FORMATS),
    num_rows=st.integers(1, 70),
    num_steps=st.integers(1, 9),
    num_out=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_shapes_at_random_give_the_bits_of_the_twin(
    isa: str, name: str, num_rows: int, num_steps: int, num_out: int
) -> None:
    library = native_kernels(isa)
    stored, x = random_blocks(name, num_out, 32 * num_steps), random_rows(num_rows, 32 * num_steps)
    assert torch.equal(multiply(int8_matrix(library, stored), x), int8_twin(x, stored))


def extreme_blocks(name: str) -> QuantizedTensor:
    """One block of each code that the format has, for 64 inputs."""
    stored = random_blocks(name, 256, 64)
    header = 4 if name == "Q4_1" else 2
    blocks = np.repeat(np.arange(256, dtype=np.uint8), 2 * stored.block.num_bytes).reshape(512, -1)
    blocks[:, :header] = stored.blocks[:, :header]
    return QuantizedTensor(stored.block, (256, 64), blocks)


@pytest.mark.parametrize("name", _FORMATS)
def test_the_largest_codes_do_not_overflow(library: KernelLibrary, name: str) -> None:
    stored = extreme_blocks(name)
    x = torch.stack((torch.ones(64), -torch.ones(64), torch.tensor([1.0, -1.0] * 32))).bfloat16()
    x = x.repeat(7, 1)
    matrix, expected = int8_matrix(library, stored), int8_twin(x, stored)
    for count in (1, 3, 8, 16, 21):
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("name", _FORMATS)
def test_the_error_is_that_of_rounding_inputs_to_127_steps_of_the_largest(
    library: KernelLibrary, name: str
) -> None:
    stored, x = random_blocks(name, 48, 576), random_rows(8, 576)
    values = torch.from_numpy(stored.dequantize()).double()
    codes, scales = quantise(x)
    assert ((codes * scales[..., None]).view_as(x) - x).abs().max() <= 0.51 * scales.max()
    allowed = 0.51 * (scales.double().repeat_interleave(32, 1) @ values.abs().T) + 1e-6
    exact = x.double() @ values.T
    assert ((multiply(int8_matrix(library, stored), x) - exact).abs() < allowed).all()


def test_a_block_of_tiny_inputs_is_zero_and_one_that_is_not_finite_makes_its_row_nan(
    library: KernelLibrary,
) -> None:
    matrix = int8_matrix(library, random_blocks("Q4_1", 20, 64))
    x = random_rows(9, 64)
    expected = multiply(matrix, x)
    x[1, 40], x[2, 3] = float("inf"), float("nan")
    x[3], x[4] = 0, 2.0**-110
    for count in (5, 9):
        got = multiply(matrix, x[:count])
        assert got[1].isnan().all()
        assert got[2].isnan().all()
        assert not got[3:5].any()
        assert torch.equal(got[[0, *range(5, count)]], expected[[0, *range(5, count)]])


@pytest.mark.parametrize("name", _FORMATS)
def test_rows_of_a_packed_matrix_read_as_stored(library: KernelLibrary, name: str) -> None:
    stored = random_blocks(name, 37, 64)
    values, rows = torch.from_numpy(stored.dequantize()), torch.tensor([0, 36, 5, 5])
    assert torch.equal(int8_matrix(library, stored).read_rows(rows), values[rows])


def test_parts_in_bfloat16_keep_bfloat16_inputs(library: KernelLibrary) -> None:
    x, stored = random_rows(20, 64), random_blocks("Q4_1", 40, 64)
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    matrix = int8_matrix(library, weight, stored)
    assert matrix.activations == ("bfloat16", "int8")
    expected = torch.cat((matrix_twin(x, weight), int8_twin(x, stored)), 1)
    for count in (1, 20):
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("count", [1, 5, 40])
def test_bias_rounding_and_adding_are_as_with_bfloat16_inputs(
    library: KernelLibrary, count: int
) -> None:
    x, stored = random_rows(count, 64), random_blocks("Q8_0", 40, 64)
    bias = torch.randn(40, generator=torch.Generator().manual_seed(0))
    before = torch.randn(count, 40, generator=torch.Generator().manual_seed(1))
    matrix, expected = int8_matrix(library, stored, bias=bias), int8_twin(x, stored) + bias
    assert torch.equal(multiply(matrix, x, torch.bfloat16), expected.bfloat16())
    assert torch.equal(matrix.multiply(x, before.clone(), adds=True), before + expected)


def test_rows_may_lie_apart(library: KernelLibrary) -> None:
    x, stored = random_rows(6, 64), random_blocks("Q4_0", 40, 64)
    holder, out = torch.zeros(6, 200, dtype=torch.bfloat16), torch.zeros(6, 100)
    holder[:, 8:72] = x
    int8_matrix(library, stored).multiply(holder[:, 8:72], out[:, 10:50])
    assert torch.equal(out[:, 10:50], int8_twin(x, stored))
    assert not out[:, :10].any()
    assert not out[:, 50:].any()
