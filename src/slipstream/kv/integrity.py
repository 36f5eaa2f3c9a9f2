"""Proof that no page of a cache is lost, counted twice or evictable while it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from slipstream.kv.lease import Lease
from slipstream.kv.pages import SCRATCH_PAGE
from slipstream.kv.radix import RadixNode
from slipstream.kv.shared_pages import SharedPages


def check_pages(shared: SharedPages, leases: Iterable[Lease]) -> None:
    """Compare holders, locks and counts with what leases and tree say.

    Raises:
        AssertionError: Names the first page, node or lease that disagrees.
    """
    leases = list(leases)
    _check_states(shared, leases)
    holders: Counter[int] = Counter()
    locks: Counter[RadixNode] = Counter()
    for lease in leases:
        _check_lease(lease, shared.page_size)
        holders.update(lease.pages)
        locks.update(_published_path(lease, shared.page_size))
    _check_tree(shared, holders, locks)
    for node in shared.tree.nodes():
        holders[node.page] += 1
    free = Counter(shared.pool.free_pages)
    for page in range(SCRATCH_PAGE + 1, shared.pool.num_pages + 1):
        _require(
            shared.pool.num_holders(page) == holders[page],
            f"page {page} counts {shared.pool.num_holders(page)} holders, has {holders[page]}",
        )
        _require(
            free[page] == (1 if holders[page] == 0 else 0),
            f"page {page} has {holders[page]} holders and is {free[page]} times in the free list",
        )
    _require(
        free[SCRATCH_PAGE] == holders[SCRATCH_PAGE] == 0, "the scratch page was handed out or freed"
    )
    _require(
        shared.pool.num_free == free.total() <= shared.pool.num_pages,
        f"the free list has {free.total()} entries for {shared.pool.num_pages} pages",
    )


def _check_states(shared: SharedPages, leases: Iterable[Lease]) -> None:
    """Every state is held by those that use it, and by nobody else."""
    states = shared.states
    if states is None:
        return
    snapshots = states.snapshots()
    holders = Counter(snapshots.values())
    for lease in leases:
        _require(lease.state is not None, f"lease {lease.request_id} has no recurrent state")
        holders.update([] if lease.state is None else lease.state.held())
    nodes = set(shared.tree.nodes())
    _require(set(snapshots) <= nodes, "a snapshot hangs at a node that is no longer in the tree")
    for state in range(1, states.pool.num_pages + 1):
        counted = states.pool.num_holders(state)
        _require(
            counted == holders[state],
            f"recurrent state {state} counts {counted} holders, has {holders[state]}",
        )


def _check_lease(lease: Lease, page_size: int) -> None:
    name = f"lease {lease.request_id}"
    pages = lease.pages
    num_rows = lease.num_tokens + lease.num_reserved
    _require(lease.is_open, f"{name} is closed but still listed")
    _require(len(set(pages)) == len(pages), f"{name} holds a page twice: {pages}")
    _require(len(pages) * page_size >= num_rows, f"{name} has {num_rows} rows, {len(pages)} pages")
    _require(
        lease.num_cached <= lease.num_published <= lease.num_tokens,
        f"{name}: cached {lease.num_cached}, published {lease.num_published}, committed "
        f"{lease.num_tokens} rows must not descend",
    )
    rows = np.arange(num_rows)
    expected = np.array(pages, dtype=np.int64)[rows // page_size] * page_size + rows % page_size
    _require(
        bool(np.array_equal(lease.slot_table(), expected)),
        f"{name}: the slot table disagrees with pages {pages}",
    )


def _published_path(lease: Lease, page_size: int) -> list[RadixNode]:
    """Nodes that the lease has locked; their pages must be the lease's leading ones."""
    path: list[RadixNode] = []
    num_published = lease.num_published // page_size
    node = lease.node
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    pages = tuple(node.page for node in reversed(path))
    _require(
        pages == lease.pages[: len(pages)] and len(pages) == num_published,
        f"lease {lease.request_id} has published {num_published} of {lease.pages}, "
        f"but its path in the tree holds {pages}",
    )
    return path


def _check_tree(shared: SharedPages, leased: Counter[int], locks: Counter[RadixNode]) -> None:
    nodes = list(shared.tree.nodes())
    pages = Counter(node.page for node in nodes)
    num_unlocked = 0
    for node in nodes:
        num_unlocked += node.num_locks == 0
        _require(pages[node.page] == 1, f"page {node.page} is cached {pages[node.page]} times")
        _require(
            node.num_locks == locks[node] == leased[node.page],
            f"cached page {node.page} counts {node.num_locks} locks, {locks[node]} leases lock "
            f"it and {leased[node.page]} hold it",
        )
        for key, child in node.children.items():
            _require(
                child.parent is node and child.key == key and child.salt == node.salt,
                f"page {child.page} hangs below page {node.page} under a wrong key or salt",
            )
    _require(
        set(locks) <= set(nodes),
        "a lease has locked a node that is no longer in the tree",
    )
    _require(
        (shared.tree.num_pages, shared.tree.num_evictable) == (len(nodes), num_unlocked),
        f"the tree counts {shared.tree.num_pages} pages, {shared.tree.num_evictable} evictable; "
        f"it has {len(nodes)} and {num_unlocked}",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
