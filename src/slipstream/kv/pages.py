"""Reference-counted pages of KV slots; who holds a page is the holders' own business."""

from __future__ import annotations

from collections.abc import Iterable

SCRATCH_PAGE = 0
"""Page that is never leased: rows that only pad a batch write their keys and values here."""

SCRATCH_SLOT = 0
"""First slot of the scratch page. Nobody may read it and expect anything."""


class PagePool:
    """Hands out page ids 1..num_pages, last freed first, and counts their holders.

    Page 0 is the scratch page, so storage needs `(num_pages + 1) * page_size` slots.

    Args:
        num_pages: Pages that can be handed out, at least 1.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a page pool needs at least 1 page, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages, SCRATCH_PAGE, -1))
        self._num_holders = [0] * (num_pages + 1)

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """Ids of the free pages; the last one is handed out next."""
        return tuple(self._free)

    def num_holders(self, page: int) -> int:
        """How many holders `page` has; 0 is free."""
        return self._num_holders[page]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages, each with one holder.

        Raises:
            ValueError: There are fewer free pages; none is taken.
        """
        if not 0 <= count <= len(self._free):
            raise ValueError(f"cannot allocate {count} pages, {len(self._free)} are free")
        if count == 0:
            return []
        pages = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add one holder to each page, none of which may be free."""
        for page in pages:
            if self._num_holders[page] == 0:
                raise ValueError(f"page {page} is free and cannot be retained; allocate it")
            self._num_holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Remove one holder from each page; a page without holders is free again."""
        for page in pages:
            if self._num_holders[page] == 0:
                raise ValueError(f"page {page} is already free and cannot be released again")
            self._num_holders[page] -= 1
            if self._num_holders[page] == 0:
                self._free.append(page)
