"""Native products: the bits of their twin, whatever the rows, threads or instruction set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.attention.row_proof import cancelling_operands
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kernels.twins import block_twin, matrix_twin
from tests.support.blocks import random_blocks

_ROW_COUNTS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 64)


pytestmark = pytest.mark.usefixtures("one_thread")


def operands(num_rows: int, num_in: int, num_out: int) -> tuple[Tensor, Tensor]:
    x, weight = cancelling_operands(num_rows, num_in, num_out, seed=num_in)
    return x.bfloat16(), weight.bfloat16()


def multiply(matrix: PackedMatrix, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return matrix.multiply(x, torch.empty(len(x), matrix.shape[0], dtype=dtype))


@pytest.mark.parametrize(("num_in", "num_out"), [(64, 16), (576, 80), (100, 37), (33, 5), (1, 1)])
def test_any_number_of_rows_gives_the_bits_of_the_twin(
    library: KernelLibrary, num_in: int, num_out: int
) -> None:
    x, weight = operands(64, num_in, num_out)
    matrix, expected = PackedMatrix(library, [weight]), matrix_twin(x, weight)
    for count in _ROW_COUNTS:
        start = 64 - count
        assert torch.equal(multiply(matrix, x[start:]), expected[start:]), count


def test_512_rows_are_those_of_512_calls_with_one(library: KernelLibrary) -> None:
    x, weight = operands(512, 96, 48)
    matrix = PackedMatrix(library, [weight])
    alone = torch.cat([multiply(matrix, row[None]) for row in x])
    for count in (512, 511, 128, 100):
        assert torch.equal(multiply(matrix, x[:count]), alone[:count])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(library: KernelLibrary, num_threads: int) -> None:
    x, weight = operands(40, 576, 200)
    matrix = PackedMatrix(library, [weight])
    expected = multiply(matrix, x)
    torch.set_num_threads(num_threads)
    for count in (1, 7, 40):
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_stored_blocks_give_the_bits_of_their_twin_for_any_number_of_rows(
    library: KernelLibrary, name: str
) -> None:
    stored = random_blocks(name, 72, 1152)
    x, _ = operands(64, 1152, 1)
    matrix, expected = PackedMatrix(library, [stored]), block_twin(x, stored)
    assert matrix.nbytes < 0.7 * 2 * 72 * 1152
    for count in _ROW_COUNTS:
        start = 64 - count
        assert torch.equal(multiply(matrix, x[start:]), expected[start:]), count


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_stored_blocks_multiply_as_their_exact_values(library: KernelLibrary, name: str) -> None:
    stored = random_blocks(name, 48, 576)
    values = torch.from_numpy(stored.dequantize())
    x = torch.randn(8, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = x.double() @ values.double().T
    scale = (x.double().abs() @ values.double().abs().T).clamp(min=1e-30)
    assert ((multiply(PackedMatrix(library, [stored]), x) - exact).abs() / scale).max() < 1e-6


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_one_row_after_many_shapes_is_the_same_as_before(library: KernelLibrary, name: str) -> None:
    wide, narrow = random_blocks(name, 32, 1536), random_blocks(name, 40, 96)
    x, _ = operands(8, 1536, 1)
    matrix, other = PackedMatrix(library, [wide]), PackedMatrix(library, [narrow])
    expected = multiply(matrix, x)
    for count in (8, 1, 3, 5, 2, 1, 8, 4):
        multiply(other, x[:count, :96].contiguous())
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_rows_of_a_packed_matrix_read_as_stored(library: KernelLibrary, name: str) -> None:
    stored = random_blocks(name, 37, 64)
    values = torch.from_numpy(stored.dequantize())
    rows = torch.tensor([0, 36, 5, 5])
    assert torch.equal(PackedMatrix(library, [stored]).read_rows(rows), values[rows])


def test_parts_of_different_formats_stand_one_below_the_other(library: KernelLibrary) -> None:
    x, weight = operands(20, 64, 24)
    stored = random_blocks("Q4_1", 40, 64)
    expected = torch.cat((matrix_twin(x, weight), block_twin(x, stored)), 1)
    matrix = PackedMatrix(library, [weight, stored])
    assert matrix.shape == (64, 64)
    for count in (1, 20):
        assert torch.equal(multiply(matrix, x[:count]), expected[:count])


@pytest.mark.parametrize("count", [1, 5, 40])
def test_bias_is_added_before_rounding_to_bfloat16(library: KernelLibrary, count: int) -> None:
    x, weight = operands(count, 64, 40)
    bias = torch.randn(40, generator=torch.Generator().manual_seed(0))
    rounded = multiply(PackedMatrix(library, [weight], bias), x, torch.bfloat16)
    assert torch.equal(rounded, (matrix_twin(x, weight) + bias).bfloat16())


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_product_can_be_added_to_what_is_there(library: KernelLibrary, count: int) -> None:
    x, weight = operands(count, 64, 40)
    before = torch.randn(count, 40, generator=torch.Generator().manual_seed(0))
    after = PackedMatrix(library, [weight]).multiply(x, before.clone(), adds=True)
    assert torch.equal(after, before + matrix_twin(x, weight))


def test_rows_may_lie_apart(library: KernelLibrary) -> None:
    x, weight = operands(6, 64, 40)
    holder = torch.zeros(6, 200, dtype=torch.bfloat16)
    holder[:, 8:72] = x
    out = torch.zeros(6, 100)
    PackedMatrix(library, [weight]).multiply(holder[:, 8:72], out[:, 10:50])
    assert torch.equal(out[:, 10:50], matrix_twin(x, weight))
    assert not out[:, :10].any()
    assert not out[:, 50:].any()


@pytest.mark.parametrize(("size", "weight_size"), [(2.0**-70, 2.0**-70), (2.0**-130, 2.0**20)])
def test_what_is_smaller_than_the_smallest_normal_number_counts_as_zero(
    library: KernelLibrary, size: float, weight_size: float
) -> None:
    x = torch.full((33, 64), size, dtype=torch.bfloat16)
    weight = torch.full((20, 64), weight_size, dtype=torch.bfloat16)
    matrix = PackedMatrix(library, [weight])
    for count in (1, 5, 16, 33):
        assert not multiply(matrix, x[:count]).any()
