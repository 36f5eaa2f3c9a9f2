"""Dequantisation agrees with the `gguf` package to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.weights.gguf_blocks import (
    BLOCK_FORMATS,
    BlockFormat,
    QuantizedTensor,
    type_name,
)

WHOLE_NUMBERS = ("I32", "I64")
FORMATS = sorted(
    (block for block in BLOCK_FORMATS.values() if block.name not in WHOLE_NUMBERS),
    key=lambda block: block.type_id,
)


def random_blocks(block: BlockFormat, num_blocks: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (num_blocks, block.num_bytes), np.uint8)


@pytest.mark.parametrize("block", FORMATS, ids=lambda block: block.name)
@given(num_blocks=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_random_blocks_come_out_as_the_reference_has_them(
    block: BlockFormat, num_blocks: int, seed: int
) -> None:
    blocks = random_blocks(block, num_blocks, seed)
    kind = gguf.GGMLQuantizationType(block.type_id)

    # Random scales include infinities and NaN, of which numpy warns.
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks.copy(), kind).reshape(num_blocks, -1)
        values = block.dequantize(blocks)

    assert values.dtype == np.float32
    assert values.shape == (num_blocks, block.num_values)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("block", FORMATS, ids=lambda block: block.name)
def test_block_sizes_are_those_of_ggml(block: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType(block.type_id)

    assert block.name == kind.name
    assert (block.num_values, block.num_bytes) == gguf.GGML_QUANT_SIZES[kind]


def test_a_tensor_of_many_chunks_equals_its_blocks_one_by_one() -> None:
    block = next(block for block in FORMATS if block.name == "Q4_1")
    blocks = random_blocks(block, 10_000, seed=3)
    blocks[:, 1] &= 0x3F  # finite scales and minima
    blocks[:, 3] &= 0x3F

    tensor = QuantizedTensor(block, (100, 3200), blocks)

    np.testing.assert_array_equal(tensor.dequantize(), block.dequantize(blocks).reshape(100, 3200))


def test_every_type_of_ggml_has_its_name() -> None:
    assert {kind.name for kind in gguf.GGMLQuantizationType} == {
        type_name(kind) for kind in gguf.GGMLQuantizationType
    }


def test_an_unknown_type_is_named_by_its_number() -> None:
    assert type_name(999) == "type number 999"


@pytest.mark.parametrize(("name", "dtype"), [("I32", np.int32), ("I64", np.int64)])
def test_whole_numbers_come_out_as_they_are(
    name: str, dtype: type[np.int32] | type[np.int64]
) -> None:
    block = next(block for block in BLOCK_FORMATS.values() if block.name == name)
    numbers = np.array([[0], [1], [-3], [128255]], dtype)
    assert block.dequantize(numbers.view(np.uint8)).tolist() == numbers.tolist()
