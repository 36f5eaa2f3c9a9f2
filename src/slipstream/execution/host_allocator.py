"""Settings of the C library's allocator for a process that runs passes or trains."""

from __future__ import annotations

import ctypes

# From malloc.h of glibc; other C libraries have no `mallopt` or ignore it.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_TOP_PAD = 64 * 2**20
_NEVER_TRIM = 2**31 - 1


def keep_freed_memory(*, maps_large_blocks: bool = True) -> bool:
    """Keep freed blocks in the process instead of giving them back to the system.

    A pass frees and allocates the same megabytes in every layer. Given back, each of their pages
    costs a fault when it is touched again, 42000 of them in a pass of 16 decoding requests.

    Args:
        maps_large_blocks: Whether blocks of more than 32 MiB still come from the system and go
            back to it. A step of training uses many of them, a pass few.
    Returns: Whether the C library took the settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    results = [
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM),
        mallopt(_M_TOP_PAD, _TOP_PAD),
    ]
    if not maps_large_blocks:
        results.append(mallopt(_M_MMAP_MAX, 0))
    return all(result == 1 for result in results)
