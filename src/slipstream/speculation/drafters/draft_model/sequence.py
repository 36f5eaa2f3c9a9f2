"""One request's text in the draft model's cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from slipstream.execution.batch import IntArray
from slipstream.kv.cache import KvCache
from slipstream.speculation.drafters.draft_model.passes import SlotCopies
from slipstream.speculation.growth import ANCHOR_ROW

_TEXT = -1


class CachedSequence:
    """The rows that the draft model has computed for one request.

    Committed rows hold committed tokens, up to the one before the anchor. The anchor (row 0 of the
    reserved ones) and the draft nodes behind it stay reserved until `settle` is told how the text
    went on, so a rejected draft never counts.
    """

    def __init__(
        self, kv: KvCache, storage: SlotCopies, request_id: str, salt: str, tokens: Sequence[int]
    ) -> None:
        self.request_id = request_id
        self._storage = storage
        self._lease = kv.open(request_id, tokens, salt)
        self._tokens = list(tokens[: self._lease.num_tokens])
        self._rows: dict[tuple[int, int], int] = {}  # (parent row, token) -> row

    @property
    def num_tokens(self) -> int:
        """Committed rows."""
        return len(self._tokens)

    @property
    def is_untouched(self) -> bool:
        """Whether it holds nothing but what the prefix cache supplied."""
        return self._lease.num_tokens == self._lease.num_cached

    def holds_start_of(self, tokens: Sequence[int]) -> bool:
        """Whether the committed rows are those of `tokens`, with the anchor still to compute."""
        num_tokens = len(self._tokens)
        return num_tokens < len(tokens) and list(islice(tokens, num_tokens)) == self._tokens

    def settle(self, tokens: Sequence[int]) -> None:
        """Commit the reserved rows that the text went through, and give back the others.

        The row of the last token is never among them: as the anchor it is computed anew, since
        its logits are wanted.

        Args:
            tokens: The text now.
        """
        if not self._rows:
            return
        first = len(self._tokens)
        kept: list[int] = []
        parent = _TEXT
        for token in islice(tokens, first, max(len(tokens) - 1, first)):
            row = self._rows.get((parent, token))
            if row is None:
                break
            kept.append(row)
            parent = row
        moves = self._lease.compact(kept)
        self._storage.copy(moves.sources, moves.targets)
        self._lease.commit(len(kept))
        self._lease.rollback()
        self._tokens.extend(tokens[first : first + len(kept)])
        self._rows.clear()

    def reserve_text(self, text_len: int) -> None:
        """Make room for the rest of a text of `text_len` tokens.

        Raises:
            OutOfPages: There is not enough; nothing changed.
        """
        self._lease.reserve(text_len - len(self._tokens))

    def text_slots(self, stop: int) -> IntArray:
        """[stop] slots of the text's positions, reserved ones included."""
        return self._lease.slots(0, stop)

    def commit_text(self, tokens: Sequence[int], count: int) -> None:
        """The next `count` rows of the text are computed: commit and share them, but the anchor's.

        Args:
            tokens: The whole text.
        """
        start = len(self._tokens)
        is_anchor_computed = start + count == len(tokens)
        chunk = tokens[start : start + count - is_anchor_computed]
        self._lease.commit(len(chunk))
        self._tokens.extend(chunk)
        self._lease.publish(self._tokens)
        if is_anchor_computed:
            self._rows[_TEXT, tokens[-1]] = ANCHOR_ROW

    def reserve_nodes(self, count: int) -> None:
        """Make room for `count` more draft nodes behind the anchor.

        Raises:
            OutOfPages: There is not enough; nothing changed.
        """
        self._lease.reserve(len(self._rows) + count)

    def add_node(self, parent_row: int, token: int) -> int:
        """Give a draft node the next row."""
        row = self._rows[parent_row, token] = len(self._rows)
        return row

    def node_slots(self, path: Sequence[int]) -> IntArray:
        """Slots of the committed text followed by the rows of `path`, the anchor's first."""
        num_tokens = len(self._tokens)
        slots = self._lease.slot_table()
        rows = num_tokens + np.array(path, dtype=np.int64)
        return np.concatenate([slots[:num_tokens], slots[rows]])

    def close(self) -> None:
        """Give everything back; full pages of committed tokens stay in the prefix cache."""
        self._lease.close(self._tokens)
        self._rows.clear()
