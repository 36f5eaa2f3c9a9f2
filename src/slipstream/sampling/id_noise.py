"""The noise of chosen tokens, many rows at once: for drafters that score a part of the vocabulary.

What is drawn never comes from here: verification has its own exact path (`draw.py`). A proposal
that differs from the target's draw in the noise's last bits costs a rejection, nothing else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from slipstream.kernels.library import KernelLibrary
from slipstream.sampling.noise import FloatArray, IntArray, gumbel_at


class IdNoise:
    """Gumbel noise of the same tokens at any seed and position; natively one short loop a row.

    Args:
        token_ids: Ids in the target's vocabulary, in any order.
        kernels: The native kernels; None computes in numpy.
    """

    def __init__(self, token_ids: Sequence[int] | IntArray, kernels: KernelLibrary | None) -> None:
        self._token_ids = np.array(token_ids, dtype=np.uint32)
        self._address = ctypes.c_void_p(self._token_ids.ctypes.data)
        self._kernels = kernels

    def rows(self, seeds: Sequence[int], positions: Sequence[int]) -> FloatArray:
        """[rows, tokens] float32: within 4e-6 of `noise.gumbel_at` natively, else equal to it.

        A row's noise does not depend on the other rows. Add it to logits that were divided by the
        request's temperature; a greedy row takes none.

        Args:
            seeds: Of each row's choice, 64 bits, as in `RowRequest`.
            positions: Of the token that each row draws, likewise.
        """
        noise = np.empty((len(seeds), self._token_ids.size), dtype=np.float32)
        if self._kernels is None:
            for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
                noise[row] = gumbel_at(seed, position, self._token_ids.astype(np.int64))
            return noise
        row_seeds = np.array(seeds, dtype=np.uint64)
        row_positions = np.array(positions, dtype=np.uint64)
        self._kernels.functions.sl_noise(
            self._kernels.isa,
            self._address,
            self._token_ids.size,
            ctypes.c_void_p(row_seeds.ctypes.data),
            ctypes.c_void_p(row_positions.ctypes.data),
            len(seeds),
            ctypes.c_void_p(noise.ctypes.data),
        )
        return noise
