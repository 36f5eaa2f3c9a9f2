"""The pages of one cache with their prefix tree: who may hold a page, and what is evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.errors import CapacityError
from slipstream.kv.pages import PagePool
from slipstream.kv.radix import RadixNode, RadixPath, RadixTree
from slipstream.kv.states import StatePool


class OutOfPages(CapacityError):
    """More pages are needed than are free or could be evicted."""


def _depth(node: RadixNode | None) -> int:
    """Pages from the root's child down to `node`."""
    depth = 0
    while node is not None and node.parent is not None:
        depth, node = depth + 1, node.parent
    return depth


@dataclass(frozen=True, slots=True)
class Published:
    """Pages that a lease holds after publishing some of its own.

    Attributes:
        node: Deepest node of the published path; it is locked for the lease.
        pages: What replaces the given pages: the same, or the tree's own with equal content.
    """

    node: RadixNode | None
    pages: list[int]


class SharedPages:
    """Page pool and prefix tree as one owner, so that no page is lost between them.

    A page has one holder for the tree and one for each lease that uses it. A lease that uses a
    page of the tree has locked that page's node, hence: evictable pages are those that the tree
    alone holds.

    Args:
        num_pages: Pages that can be leased.
        page_size: Tokens per page.
        prefix_cache: Whether pages are ever shared; if not, the tree stays empty.
        states: Of recurrent layers; None where the model has none.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_cache: bool,
        states: StatePool | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.states = states
        self.tree = RadixTree(page_size, None if states is None else states.forget)
        self.prefix_cache = prefix_cache
        self.num_evicted = 0

    @property
    def num_available(self) -> int:
        """Pages that `take` can hand out: free and evictable ones."""
        return self.pool.num_free + self.tree.num_evictable

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages, evicting cached ones only as far as needed.

        Raises:
            OutOfPages: Not possible; nothing was evicted.
        """
        shortage = count - self.pool.num_free
        if shortage > 0:
            if shortage > self.tree.num_evictable:
                raise OutOfPages(
                    f"{count} more KV pages are needed, but of {self.pool.num_pages} pages only "
                    f"{self.pool.num_free} are free and {self.tree.num_evictable} evictable",
                    hint="raise memory.kv_bytes or memory.utilization, or run fewer requests",
                )
            self.evict(shortage)
        return self.pool.allocate(count)

    def give_back(self, pages: Sequence[int]) -> None:
        """Undo one holder of each page."""
        self.pool.release(pages)

    def evict(self, count: int) -> int:
        """Evict up to `count` cached pages that no lease uses; returns how many went."""
        evicted = self.tree.evict(count)
        self.pool.release(evicted)
        self.num_evicted += len(evicted)
        return len(evicted)

    def share(self, salt: str, tokens: Sequence[int]) -> RadixPath:
        """Take the longest cached prefix of `tokens`: its pages are held, its path is locked.

        With recurrent layers it ends where there is a snapshot of their state, which is held too.
        """
        path = self.tree.match(salt, tokens)
        if self.states is not None:
            node, state = self.states.find(path.node)
            self.states.hold(state)
            path = RadixPath(node, path.pages[: _depth(node)], state)
        if path.node is not None:
            self.tree.lock(path.node)
            self.pool.retain(path.pages)
        return path

    def publish(
        self, salt: str, tokens: Sequence[int], pages: Sequence[int], *, below: RadixNode | None
    ) -> Published:
        """Offer a lease's full pages to other requests and keep holding (and lock) them.

        Where the tree already has the same tokens, the lease changes over to the tree's page and
        its own duplicate is freed: equal tokens have bit-equal keys and values.

        Args:
            salt, tokens, pages, below: As in `RadixTree.insert`; `below` is the lease's own node.
        """
        inserted = self.tree.insert(salt, tokens, pages, below=below)
        if inserted.node is None:
            return Published(below, [])
        self.tree.lock(inserted.node, below=below)
        self.pool.retain(inserted.adopted)
        if len(inserted.adopted) < len(pages):
            adopted = set(inserted.adopted)
            self.pool.retain(page for page in inserted.pages if page not in adopted)
            self.pool.release(page for page in pages if page not in adopted)
        return Published(inserted.node, inserted.pages)

    def unshare(self, path: RadixPath) -> None:
        """Give back a lease's pages and the lock of its path; they become the latest used."""
        if path.node is not None:
            self.tree.unlock(path.node)
        self.pool.release(path.pages)
        if self.states is not None:
            self.states.release(path.state)
