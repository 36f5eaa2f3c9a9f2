"""Memory for weights: few large regions on huge pages, which spares a step page walks."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from slipstream.errors import CapacityError

_ALIGNMENT = 4096
_LINE = 64
_HUGE_PAGE = 2 * 2**20
_REGION_BYTES = 32 * 2**20


class WeightMemory:
    """Hands out pieces of anonymous memory; a region lives as long as a piece of it."""

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, zero, aligned to a page; kernels may read a line past its end."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if start + num_bytes + _LINE > len(self._region):
            self._region = _new_region(max(num_bytes, _REGION_BYTES))
            start = 0
        self._used = start + num_bytes
        return self._region[start : self._used]


def zeros_on_huge_pages(num_bytes: int) -> Tensor:
    """[num_bytes] uint8, zero, on huge pages where the system has them.

    Pages that are never touched take no memory.

    Raises:
        CapacityError: The system does not give that much.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    # Shared memory, mmap's default, would stay on small pages.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        pages = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=flags)
    except (OSError, OverflowError) as error:
        raise CapacityError(
            f"the system does not give {num_bytes / 2**30:.1f} GiB of memory",
            hint="ask for less: fewer tokens of context, or a smaller budget (memory.kv_bytes)",
        ) from error
    pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + num_bytes]


def _new_region(num_bytes: int) -> Tensor:
    return zeros_on_huge_pages(-(-(num_bytes + _LINE) // _HUGE_PAGE) * _HUGE_PAGE)
