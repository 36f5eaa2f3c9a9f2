"""Where an array's numbers lie, for structures that kernels read."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt


def address_of(array: npt.NDArray[Any]) -> int:  # Any: numbers of every type have an address
    """Address of a writable array without gaps (others are refused); 0 of an empty one.

    `array.ctypes` is Python code that a step finds in no cache: 25 us for the first use, 10 here.
    """
    if not array.size:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # a buffer
