"""Prefix tree over token ids whose edges are whole pages; the prefix cache's index."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_NO_PAGE = -1


class RadixNode:
    """One cached page: its tokens, given the tokens of its ancestors. Only the tree changes it."""

    __slots__ = ("children", "key", "last_used", "num_locks", "page", "parent", "salt")

    def __init__(self, salt: str, parent: RadixNode | None, key: bytes, page: int) -> None:
        self.salt = salt
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[bytes, RadixNode] = {}
        self.num_locks = 0
        self.last_used = 0

    @property
    def is_evictable_leaf(self) -> bool:
        """Still in the tree, unlocked, and nothing hangs below it."""
        return self.page != _NO_PAGE and not self.children and self.num_locks == 0

    def __lt__(self, other: RadixNode) -> bool:
        """Order of the heap among equal times; no two leaves share one, so never decisive."""
        return self.page < other.page


@dataclass(frozen=True, slots=True)
class RadixPath:
    """A path from below the root to one node.

    Attributes:
        node: The deepest node, or None where nothing matched.
        pages: Page of each node, in token order.
        state: Snapshot of the recurrent layers' state at that node; 0 is the empty state.
    """

    node: RadixNode | None
    pages: list[int]
    state: int = 0


@dataclass(frozen=True, slots=True)
class Insertion:
    """What `RadixTree.insert` did.

    Attributes:
        node: The deepest node of the inserted path.
        pages: The tree's page for each inserted page of tokens: the one given, or the one that
            the tree already had for these tokens.
        adopted: The given pages that the tree now holds, in order.
    """

    node: RadixNode | None
    pages: list[int]
    adopted: list[int]


class RadixTree:
    """Maps (salt, tokens) to pages; forgets unlocked leaves, least recently used first.

    Salts never share a node. Time is a count of uses, so eviction order depends on the calls
    alone. The tree names pages but does not count their holders: the caller does.

    Args:
        page_size: Tokens per page.
        on_evict: Is told of each node that leaves the tree.
    """

    def __init__(self, page_size: int, on_evict: Callable[[RadixNode], None] | None = None) -> None:
        self.page_size = page_size
        self._on_evict = on_evict
        self._roots: dict[str, RadixNode] = {}
        self._leaves: list[tuple[int, RadixNode]] = []
        self._num_pages = 0
        self._num_locked = 0
        self._time = 0

    @property
    def num_pages(self) -> int:
        """Pages in the tree."""
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could give up."""
        return self._num_pages - self._num_locked

    @property
    def num_queued(self) -> int:
        """Entries of the eviction queue, stale ones included; bounded by the number of pages."""
        return len(self._leaves)

    def match(self, salt: str, tokens: Sequence[int]) -> RadixPath:
        """Longest cached prefix of `tokens` in whole pages. Lock its node before using it."""
        pages: list[int] = []
        node = self._roots.get(salt)
        if node is None:
            return RadixPath(None, pages)
        for key in self._page_keys(tokens):
            child = node.children.get(key)
            if child is None:
                break
            node = child
            pages.append(node.page)
        return RadixPath(node if pages else None, pages)

    def insert(
        self,
        salt: str,
        tokens: Sequence[int],
        pages: Sequence[int],
        *,
        below: RadixNode | None = None,
    ) -> Insertion:
        """Add a path; where the tree already has these tokens it keeps its own page.

        Args:
            salt: Whose tree.
            tokens: [len(pages) * page_size] token ids of the path.
            pages: The page of each `page_size` tokens.
            below: Node under which the path starts, which must be locked; None is the root.
        """
        if len(tokens) != len(pages) * self.page_size:
            raise ValueError(
                f"{len(pages)} pages of {self.page_size} need "
                f"{len(pages) * self.page_size} tokens, got {len(tokens)}"
            )
        if not pages:
            return Insertion(below, [], [])
        node = below or self._roots.setdefault(salt, RadixNode(salt, None, b"", _NO_PAGE))
        self._time += 1
        tree_pages: list[int] = []
        adopted: list[int] = []
        for key, page in zip(self._page_keys(tokens), pages, strict=True):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = RadixNode(salt, node, key, page)
                adopted.append(page)
            child.last_used = self._time
            tree_pages.append(child.page)
            node = child
        self._num_pages += len(adopted)
        self._offer(node)
        return Insertion(node, tree_pages, adopted)

    def lock(self, node: RadixNode, *, below: RadixNode | None = None) -> None:
        """Keep `node` and its ancestors from eviction; locks are counted.

        Args:
            node: Deepest node to lock.
            below: Ancestor that the caller has locked already; only nodes under it are locked,
                and one `unlock(node)` gives back both.
        """
        step: RadixNode | None = node
        while step is not None and step is not below and step.parent is not None:
            if step.num_locks == 0:
                self._num_locked += 1
            step.num_locks += 1
            step = step.parent

    def unlock(self, node: RadixNode) -> None:
        """Give back one lock of `node` and its ancestors, which are now the latest used."""
        self._time += 1
        step = node
        while step.parent is not None:
            if step.num_locks == 0:
                raise ValueError(f"the node of page {step.page} is not locked")
            step.num_locks -= 1
            if step.num_locks == 0:
                self._num_locked -= 1
            step.last_used = self._time
            step = step.parent
        self._offer(node)

    def evict(self, count: int) -> list[int]:
        """Forget up to `count` unlocked pages, leaves first, least recently used first."""
        evicted: list[int] = []
        while len(evicted) < count and self._leaves:
            last_used, node = heapq.heappop(self._leaves)
            if node.is_evictable_leaf and node.last_used == last_used:
                evicted.append(node.page)
                self._detach(node)
        return evicted

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes that hold a page, parents before children."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            pending.extend(node.children.values())

    def _page_keys(self, tokens: Sequence[int]) -> list[bytes]:
        num_whole = len(tokens) // self.page_size * self.page_size
        raw = np.asarray(tokens[:num_whole], dtype=np.int64).tobytes()
        stride = self.page_size * np.dtype(np.int64).itemsize
        return [raw[start : start + stride] for start in range(0, len(raw), stride)]

    def _detach(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None  # roots hold no page and are never offered
        del parent.children[node.key]
        if self._on_evict is not None:
            self._on_evict(node)
        node.page = _NO_PAGE
        self._num_pages -= 1
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children:
            del self._roots[node.salt]

    def _offer(self, node: RadixNode) -> None:
        """Enter `node` into the eviction heap if it can go; stale entries are skipped there."""
        if not node.is_evictable_leaf:
            return
        heapq.heappush(self._leaves, (node.last_used, node))
        if len(self._leaves) > 2 * self._num_pages + 64:
            self._leaves = [
                (leaf.last_used, leaf) for leaf in self.nodes() if leaf.is_evictable_leaf
            ]
            heapq.heapify(self._leaves)
