"""Memory that is taken away from a running engine, so that it must preempt."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.kv.cache import KvCache, Lease

_NAME = "audit-ballast"
_STEPS_BETWEEN = 2
_MIN_DECODING = 2


class MemoryPressure:
    """A lease of its own over all pages that no request holds.

    While it is held the next request that needs a page finds none, and one must give way. It is
    given back once that happened, and taken again a few steps later. It is held only while two
    sequences decode, because an engine may count on room for one.
    """

    def __init__(self, kv: KvCache) -> None:
        self._kv = kv
        self._lease: Lease | None = None
        self._num_steps = 0

    def update(self, decoding: Collection[str]) -> None:
        """Take or give back, between two steps.

        Args:
            decoding: Ids of sequences that have output and are not finished.
        """
        self._num_steps += 1
        if self._lease is not None:
            if len(decoding) < _MIN_DECODING or any(
                name not in self._kv.leases for name in decoding
            ):
                self.release()
        elif len(decoding) >= _MIN_DECODING and self._num_steps >= _STEPS_BETWEEN:
            self._take()

    def release(self) -> None:
        """Give everything back."""
        if self._lease is not None:
            self._lease.close()
        self._lease = None
        self._num_steps = 0

    def _take(self) -> None:
        usage = self._kv.usage()
        num_pages = usage.num_free + usage.num_evictable
        self._lease = self._kv.open(_NAME, (), "", use_prefix=False)
        self._lease.reserve(num_pages * self._kv.page_size)
