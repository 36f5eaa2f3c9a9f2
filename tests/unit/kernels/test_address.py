"""Addresses of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kernels.address import address_of


def test_an_arrays_address_is_that_of_its_first_number() -> None:
    numbers = np.arange(12, dtype=np.int64).reshape(3, 4)
    assert address_of(numbers) == numbers.ctypes.data
    assert address_of(numbers[1:]) == numbers.ctypes.data + 4 * numbers.itemsize


def test_an_empty_array_has_no_address() -> None:
    assert address_of(np.empty((2, 0), np.int32)) == 0


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="contiguous"):
        address_of(np.arange(12)[::2])
