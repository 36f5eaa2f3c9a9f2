"""One request's hold on the KV cache: reserve rows, commit some, give back the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.kv.radix import RadixNode, RadixPath
from slipstream.kv.shared_pages import SharedPages
from slipstream.kv.states import LeasedState, StateSpan

SlotArray = npt.NDArray[np.int64]

_NO_SLOTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Moves:
    """Slot copies that bring surviving rows to the front; safe in the given order.

    Attributes:
        sources, targets: [moves] int64 slots; a target is never a source that is read later.
    """

    sources: SlotArray
    targets: SlotArray

    def __len__(self) -> int:
        return len(self.targets)


_NO_MOVES = Moves(_NO_SLOTS, _NO_SLOTS)


class Lease:
    """Pages of one request, opened by `KvCache.open`.

    Rows 0..num_tokens-1 are committed; the `num_reserved` rows after them may be written but do
    not count yet. Row i lies in slot `slots(i, i + 1)[0]`; a slot is `page * page_size + offset`.
    A row that was published never changes.

    Attributes:
        state: Of the model's recurrent layers; None where it has none.
    """

    def __init__(
        self,
        shared: SharedPages,
        request_id: str,
        salt: str,
        prefix: RadixPath,
        on_close: Callable[[Lease], None],
    ) -> None:
        self.request_id = request_id
        self.salt = salt
        self._shared = shared
        self._page_size = shared.page_size
        self._on_close = on_close
        self._node = prefix.node
        self._pages: list[int] = []
        self._slots = _NO_SLOTS
        self._append(prefix.pages)
        self._num_published = len(prefix.pages)  # in pages
        self._num_cached = self._num_tokens = len(prefix.pages) * self._page_size
        self._num_reserved = 0
        self._is_open = True
        states = shared.states
        self.state = None if states is None else LeasedState(states, prefix.state, self._num_cached)

    @property
    def num_tokens(self) -> int:
        """Committed rows."""
        return self._num_tokens

    @property
    def num_cached(self) -> int:
        """Rows that the prefix cache supplied at opening; whole pages."""
        return self._num_cached

    @property
    def num_reserved(self) -> int:
        """Rows after the committed ones that may be written."""
        return self._num_reserved

    @property
    def num_published(self) -> int:
        """Leading rows whose pages are in the prefix cache; whole pages."""
        return self._num_published * self._page_size

    @property
    def node(self) -> RadixNode | None:
        """Deepest node of the prefix cache that this lease keeps locked."""
        return self._node

    @property
    def pages(self) -> tuple[int, ...]:
        """Held pages in row order, those of reserved rows included."""
        return tuple(self._pages)

    @property
    def is_open(self) -> bool:
        """Whether the lease still holds its pages."""
        return self._is_open

    def reserve(self, count: int) -> None:
        """Make the `count` rows after the committed ones writable, replacing an earlier count.

        Raises:
            OutOfPages: There are not enough pages even after eviction; nothing changed.
        """
        self._require_open()
        if count < 0:
            raise ValueError(f"cannot reserve {count} rows")
        num_missing = -(-(self._num_tokens + count) // self._page_size) - len(self._pages)
        if num_missing > 0:
            self._append(self._shared.take(num_missing))
        self._num_reserved = count

    def slots(self, start: int, stop: int) -> SlotArray:
        """[stop - start] int64 slots of rows start..stop-1, committed or reserved.

        The array is a view for reading. It holds until the next `publish`, `rollback` or `close`.
        """
        if not 0 <= start <= stop <= self._num_tokens + self._num_reserved:
            raise ValueError(
                f"rows {start}..{stop} are not within the {self._num_tokens} committed and "
                f"{self._num_reserved} reserved rows of request {self.request_id}"
            )
        return self._slots[start:stop]

    def span(
        self, first_row: int, num_known: int, num_drafts: int = 0, *, ends_prompt: bool = False
    ) -> StateSpan | None:
        """The rows of the next pass for recurrent layers; None where the model has none.

        Snapshots are taken every `StatePool.interval` tokens, and at the last whole page in front
        of a prompt's last token, from where an equal prompt can go on.

        Args:
            first_row: Row of the pass that stands behind the committed ones.
            num_known, num_drafts: Rows that will stay, and rows that may be rolled back.
            ends_prompt: The known rows end with the prompt's last token.
        """
        state, states = self.state, self._shared.states
        if state is None or states is None:
            return None
        boundaries: set[int] = set()
        if self._shared.prefix_cache:
            end = self._num_tokens + num_known
            first = (self._num_tokens - states.max_drafts) // states.interval
            boundaries.update(
                step * states.interval for step in range(max(first, 0), end // states.interval + 1)
            )
            if ends_prompt:
                boundaries.add((end - 1) // self._page_size * self._page_size)
        return state.span(first_row, num_known, num_drafts, sorted(boundaries))

    def slot_table(self) -> SlotArray:
        """[num_tokens + num_reserved] int64 slots of all rows; a view as in `slots`."""
        return self._slots[: self._num_tokens + self._num_reserved]

    def commit(self, count: int) -> None:
        """Count the first `count` reserved rows as committed; the others stay reserved."""
        self._require_open()
        if not 0 <= count <= self._num_reserved:
            raise ValueError(f"cannot commit {count} of {self._num_reserved} reserved rows")
        self._num_tokens += count
        self._num_reserved -= count
        if self.state is not None:
            self.state.commit(count)

    def compact(self, kept: Sequence[int]) -> Moves:
        """Copies that make the surviving reserved rows contiguous after the committed ones.

        The caller copies the storage, then calls `commit(len(kept))`; the lease changes only then.

        Args:
            kept: Offsets within the reserved rows, strictly ascending.
        """
        self._require_open()
        if list(kept) == list(range(len(kept))) and len(kept) <= self._num_reserved:
            return _NO_MOVES
        offsets = np.asarray(kept, dtype=np.int64)
        if kept[0] < 0 or kept[-1] >= self._num_reserved or (offsets[1:] <= offsets[:-1]).any():
            raise ValueError(
                f"kept rows must ascend within the {self._num_reserved} reserved, got {list(kept)}"
            )
        places = np.arange(len(offsets), dtype=np.int64)
        first_moved = int((offsets == places).sum())  # once a gap opens, every later row moves
        reserved = self._slots[self._num_tokens :]
        return Moves(
            sources=reserved[offsets[first_moved:]],
            targets=reserved[first_moved : len(offsets)].copy(),
        )

    def rollback(self) -> None:
        """Give up all reserved rows, and the pages that only they needed."""
        self._require_open()
        self._num_reserved = 0
        num_needed = -(-self._num_tokens // self._page_size)
        if num_needed < len(self._pages):
            self._shared.give_back(self._pages[num_needed:])
            del self._pages[num_needed:]

    def publish(self, tokens: Sequence[int]) -> None:
        """Share the full committed pages with later requests of the same salt.

        Slots of these rows may change to those of pages that were shared before.

        Args:
            tokens: Token id of each row, from row 0. Ids after the committed rows are ignored;
                rows that `tokens` does not reach are not published.
        """
        self._require_open()
        self._publish_pages(tokens)
        if self.state is not None:
            self.state.publish(self._node, self.num_published, self._page_size)

    def _publish_pages(self, tokens: Sequence[int]) -> None:
        first = self._num_published
        stop = min(len(tokens), self._num_tokens) // self._page_size
        if not self._shared.prefix_cache or stop <= first:
            return
        published = self._shared.publish(
            self.salt,
            tokens[first * self._page_size : stop * self._page_size],
            self._pages[first:stop],
            below=self._node,
        )
        if self._pages[first:stop] != published.pages:
            self._pages[first:stop] = published.pages
            self._fill_slots(first, stop)
        self._node = published.node
        self._num_published = stop

    def close(self, tokens: Sequence[int] | None = None) -> None:
        """End the lease: its full pages stay cached, everything else is freed.

        Args:
            tokens: As in `publish`; None caches nothing that was not published before.
        """
        self._require_open()
        if tokens is not None:
            self.publish(tokens)
        self._shared.unshare(RadixPath(self._node, self._pages))
        if self.state is not None:
            self.state.close()
        self._is_open = False
        self._node = None
        self._pages = []
        self._slots = _NO_SLOTS
        self._num_tokens = self._num_reserved = self._num_published = 0
        self._on_close(self)

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the lease of request {self.request_id} is closed")

    def _append(self, pages: Sequence[int]) -> None:
        first = len(self._pages)
        self._pages.extend(pages)
        num_slots = len(self._pages) * self._page_size
        if num_slots > len(self._slots):
            grown = np.empty(max(num_slots, 2 * len(self._slots)), dtype=np.int64)
            grown[: first * self._page_size] = self._slots[: first * self._page_size]
            self._slots = grown
        self._fill_slots(first, len(self._pages))

    def _fill_slots(self, first: int, stop: int) -> None:
        table = self._slots[first * self._page_size : stop * self._page_size]
        if stop - first == 1:  # while decoding, and there each function of numpy is cold code
            start = self._pages[first] * self._page_size
            table[:] = np.arange(start, start + self._page_size, dtype=np.int64)
            return
        pages = np.array(self._pages[first:stop], dtype=np.int64)
        np.add(
            pages[:, None] * self._page_size,
            np.arange(self._page_size, dtype=np.int64),
            out=table.reshape(-1, self._page_size),
        )
