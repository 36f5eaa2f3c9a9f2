"""What the memory gives: a buffer of the weights' size, read by all threads in native code."""

from __future__ import annotations

import ctypes

import torch

from slipstream.clock import Clock
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.memory import WeightMemory

READS_AT_ONCE = 4
_WORD_BYTES = 8


class BandwidthMeter:
    """Reads one buffer over and over, as a model's steps read its weights.

    A buffer of the weights' size finds in the caches what the weights would find there, so the rate
    is that of this amount of data and not of memory alone.

    Args:
        num_bytes: Size of the buffer.
    """

    def __init__(self, kernels: KernelLibrary, num_bytes: int, clock: Clock) -> None:
        self._function = kernels.functions.sl_read_memory
        self._clock = clock
        self._buffer = WeightMemory().take(max(num_bytes, _WORD_BYTES))
        self._buffer.fill_(1)  # untouched pages are all one page of zeros

    def read(self) -> list[float]:
        """Bytes per second of some reads in a row; one before them is not counted."""
        return [self._rate() for _ in range(READS_AT_ONCE)][1:]

    def _rate(self) -> float:
        num_words = len(self._buffer) // _WORD_BYTES
        started_s = self._clock.now()
        self._function(
            torch.get_num_threads(),
            ctypes.c_void_p(self._buffer.data_ptr()),
            ctypes.c_int64(num_words),
        )
        return num_words * _WORD_BYTES / max(self._clock.now() - started_s, 1e-9)
