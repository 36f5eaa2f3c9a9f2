"""The paged KV cache of one model: leases for requests, and a prefix cache between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from slipstream.kv.integrity import check_pages
from slipstream.kv.lease import Lease, Moves, SlotArray
from slipstream.kv.radix import RadixPath
from slipstream.kv.shared_pages import OutOfPages, SharedPages
from slipstream.kv.states import OutOfStates, StatePool, StateUsage

__all__ = ["KvCache", "KvUsage", "Lease", "Moves", "OutOfPages", "SlotArray"]


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Where the pages are, and what the prefix cache has done so far.

    `num_free + num_evictable + num_leased == num_pages`.

    Attributes:
        num_pages: Pages that can be leased (the scratch page is not one of them).
        num_free: Pages without content.
        num_evictable: Cached pages that no lease uses.
        num_leased: Pages that leases use, shared or not; they cannot be evicted.
        num_cached: Pages in the prefix tree, evictable or in use.
        num_leases: Open leases.
        num_queried_tokens, num_hit_tokens: Tokens looked up at opening, and found; since start.
        num_evicted_pages: Pages evicted since start.
        states: Of recurrent layers; None where the model has none.
    """

    num_pages: int
    num_free: int
    num_evictable: int
    num_leased: int
    num_cached: int
    num_leases: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evicted_pages: int
    states: StateUsage | None = None

    @property
    def pressure(self) -> float:
        """Share of the pages that cannot be evicted; what the memory watermarks look at."""
        return self.num_leased / self.num_pages


class KvCache:
    """Bookkeeping of pages, without the memory behind them (`kv.storage` has that).

    Storage for it needs `num_slots` slots: page 0 is a scratch page that is never leased.

    Args:
        num_pages: Pages that can be leased, at least 1.
        page_size: Tokens per page, at least 1.
        prefix_cache: Whether requests share the pages of equal prefixes.
        states: Of recurrent layers; a lease then holds one, and prefixes are shared up to
            snapshots.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_cache: bool = True,
        states: StatePool | None = None,
    ) -> None:
        self._shared = SharedPages(num_pages, page_size, prefix_cache=prefix_cache, states=states)
        self._leases: dict[str, Lease] = {}
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._shared.page_size

    @property
    def states(self) -> StatePool | None:
        """States of recurrent layers; None where the model has none."""
        return self._shared.states

    @property
    def num_pages(self) -> int:
        """Pages that can be leased."""
        return self._shared.pool.num_pages

    @property
    def num_slots(self) -> int:
        """Slots that storage must have, those of the scratch page included."""
        return (self.num_pages + 1) * self.page_size

    @property
    def leases(self) -> Mapping[str, Lease]:
        """Open leases by request id."""
        return MappingProxyType(self._leases)

    def open(
        self, request_id: str, tokens: Sequence[int], salt: str, *, use_prefix: bool = True
    ) -> Lease:
        """Open a lease that starts with the longest cached prefix of `tokens`, in whole pages.

        The last token is never taken from the cache, since its row must be computed to say what
        comes next. Opening takes no new page, so it cannot run out of them; of a model with
        recurrent layers it takes a state, if need be the one of the snapshot that it could have
        gone on from.

        Args:
            request_id: Name of the sequence; it must not have an open lease.
            tokens: All token ids of the sequence so far.
            salt: Tenant; only leases of the same salt share pages.
            use_prefix: False computes every row (prompt logprobs need them all).

        Raises:
            OutOfStates: The model has recurrent layers, and `can_open` is false.
        """
        if request_id in self._leases:
            raise ValueError(f"request {request_id} already has an open lease")
        prefix = RadixPath(None, [])
        if use_prefix and self._shared.prefix_cache and len(tokens) > self.page_size:
            prefix = self._shared.share(salt, tokens[:-1])
        try:
            lease = Lease(self._shared, request_id, salt, prefix, self._forget)
        except OutOfStates:
            self._shared.unshare(prefix)
            if prefix.node is None:
                raise
            lease = Lease(self._shared, request_id, salt, RadixPath(None, []), self._forget)
        self._leases[request_id] = lease
        if use_prefix:
            self._num_queried_tokens += len(tokens)
            self._num_hit_tokens += lease.num_cached
        return lease

    def can_open(self) -> bool:
        """Whether a recurrent state is left for one more lease; always without such layers."""
        return self.states is None or self.states.can_take()

    def can_reserve(self, num_tokens: int) -> bool:
        """Whether a new lease of `num_tokens` rows would fit now, evicting what may go."""
        return -(-num_tokens // self.page_size) <= self._shared.num_available

    def usage(self) -> KvUsage:
        """Counts of now; cheap enough for every step."""
        pool, tree = self._shared.pool, self._shared.tree
        return KvUsage(
            num_pages=pool.num_pages,
            num_free=pool.num_free,
            num_evictable=tree.num_evictable,
            num_leased=pool.num_pages - pool.num_free - tree.num_evictable,
            num_cached=tree.num_pages,
            num_leases=len(self._leases),
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted_pages=self._shared.num_evicted,
            states=None if self.states is None else self.states.usage(),
        )

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` evictable pages, least recently used first; returns how many."""
        return self._shared.evict(num_pages)

    def reset_prefix_cache(self) -> int:
        """Forget every cached page that no lease uses; returns how many."""
        return self._shared.evict(self._shared.tree.num_evictable)

    def check_integrity(self) -> None:
        """Prove that no page is lost, counted twice or evictable while used.

        Raises:
            AssertionError: Names the first disagreement.
        """
        check_pages(self._shared, self._leases.values())

    def _forget(self, lease: Lease) -> None:
        del self._leases[lease.request_id]
