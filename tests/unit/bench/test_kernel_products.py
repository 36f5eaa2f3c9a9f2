"""Copies of matrices that a product's times are taken on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipstream.bench.kernel_products import ProductCases, fits, random_weight, shapes_of
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import PackedMatrix
from slipstream.kernels.structs import FORMATS
from slipstream.models.layers.linear import LinearFactory, NativeLinear
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kernels() -> KernelLibrary:
    return native_kernels()


def test_shapes_and_bytes_are_those_of_the_loaded_model(
    kernels: KernelLibrary, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path, "qwen3")
    model = load_model(open_checkpoint(path), torch.bfloat16, kernels=kernels)
    shapes = shapes_of(model.hparams)
    layer = model.layers[0]
    assert list(dict(shapes.items()).values()) == [
        linear.shape for linear in (*layer.linears(), model.head)
    ]
    linears = [linear for layer in model.layers for linear in layer.linears()]
    assert all(isinstance(linear, NativeLinear) for linear in linears)
    assert shapes.step_bytes(kernels, "BF16") == sum(
        linear.nbytes for linear in (*linears, model.head)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_random_weights_are_harmless(kernels: KernelLibrary, name: str) -> None:
    matrix = PackedMatrix(kernels, [random_weight(name, (32, 64))])
    values = matrix.read_rows(torch.arange(32))
    assert matrix.formats == (name,)
    assert values.isfinite().all()
    assert 0.0 < float(values.abs().max()) < 10.0


def test_a_format_of_blocks_needs_whole_blocks() -> None:
    assert fits("BF16", 33)
    assert fits("Q4_1", 64)
    assert not fits("Q4_1", 33)


def test_copies_are_as_much_as_a_step_reads(kernels: KernelLibrary) -> None:
    factory = LinearFactory(torch.bfloat16)
    cases = ProductCases(kernels, factory, "Q8_0", "down", (32, 64), rotation_bytes=20_000)
    size = PackedMatrix(kernels, [random_weight("Q8_0", (32, 64))]).nbytes
    assert (cases.num_copies - 1) * size < 20_000 <= cases.num_copies * size
    case = cases.case(num_rows=3)
    assert case.num_bytes == size + 3 * 64 * 2 + 3 * 32 * 4
    for contestant in case.contestants:
        contestant.run()
