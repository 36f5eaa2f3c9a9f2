"""Passes of multi-token-prediction heads: committed rows of many requests, and chains of drafts.

A row of head k stands for the tokens up to one of them, and lies in the slot of that token's
position p: row j of head k in that of p = j + k + 1. The rows of the anchor have no slot yet; they
lie in a seat, a few spare slots of the request's own, with the rows of its drafts behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slipstream.execution.batch import Branch, IntArray
from slipstream.kv.storage import KvStorage
from slipstream.models.mtp.heads import MtpHeads, MtpRows


@dataclass(slots=True)
class Seat:
    """A request's rows that are in no slot of the target's.

    Attributes:
        slots: [n] spare slots: of the anchor, then of drafts.
        position: Of the anchor, the newest token that the heads know; -1 before the first.
        outputs: By head, [hidden] the output of the anchor's row; None where there is none yet.
    """

    slots: IntArray
    position: int = -1
    outputs: list[Tensor | None] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Memory of the outputs."""
        return sum(output.nbytes for output in self.outputs if output is not None)


@dataclass(frozen=True, slots=True)
class CommittedStates:
    """Rows of one request that the target has read and that stay.

    Attributes:
        states: [rows, hidden] float32 behind the target's final norm.
        next_tokens: The token behind each row.
        slots: [first + rows] slot of every position so far, these rows last; one more where the
            last of `next_tokens` has a slot too.
        first: Position of the first of the rows.
    """

    seat: Seat
    states: Tensor
    next_tokens: Sequence[int]
    slots: IntArray
    first: int

    def tokens_from(self, position: int) -> list[int]:
        """Of `next_tokens`, those from this position of the text on."""
        return list(self.next_tokens[position - self.first - 1 :])

    def table(self) -> IntArray:
        """Slots of all tokens up to the last of `next_tokens`."""
        count = self.first + len(self.next_tokens) + 1
        return np.concatenate([self.slots, self.seat.slots[:1]])[:count]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one request in one pass of one head.

    Attributes:
        hidden: [rows, hidden] what they read beside their tokens.
        table: Slots of all rows of the text in that head, these last.
    """

    tokens: list[int]
    hidden: Tensor
    table: IntArray


class MtpPasses:
    """Takes in committed rows and drafts chains.

    Args:
        storage: Of the heads' keys and values, the target's slots first.
    """

    def __init__(self, heads: MtpHeads, storage: KvStorage) -> None:
        self.heads = heads
        self.storage = storage

    def absorb(self, requests: Sequence[CommittedStates]) -> None:
        """Compute rows of all heads for committed positions, all requests in a pass per head.

        What a head has drafted from outputs of its own is forgotten: rows made of the target's
        states take its place.
        """
        self._settle(requests)
        newest = [list(request.seat.outputs) for request in requests]
        inputs = [request.states for request in requests]
        lows = [request.first + 1 for request in requests]
        for head in range(self.heads.num_heads):
            # Token p has a row in head k only from p = k + 1 on.
            lows, above = [max(low, head + 1) for low in lows], lows
            if head:
                inputs = [
                    _in_front(outputs, anchors[head - 1] if low == old else None)
                    for outputs, anchors, low, old in zip(inputs, newest, lows, above, strict=True)
                ]
            rows = [
                _Rows(request.tokens_from(low), hidden, request.table()[head + 1 :])
                for request, hidden, low in zip(requests, inputs, lows, strict=True)
            ]
            inputs = self.run(head, rows)
            for request, outputs in zip(requests, inputs, strict=True):
                request.seat.outputs[head] = outputs[-1].clone() if len(outputs) else None
        for request in requests:
            request.seat.position = request.first + len(request.next_tokens)

    def run(self, head: int, requests: Sequence[_Rows]) -> list[Tensor]:
        """One pass of one head: outputs [rows, hidden] by request, of some perhaps no rows."""
        asked = [rows for rows in requests if rows.tokens]
        if not asked:
            return [rows.hidden for rows in requests]
        starts = np.cumsum([0, *(len(rows.tokens) for rows in asked)]).tolist()
        output = self.heads.run(
            head,
            MtpRows(
                torch.tensor([token for rows in asked for token in rows.tokens]),
                torch.cat([rows.hidden for rows in asked]),
                [
                    chain_branch(start, len(rows.tokens), rows.table)
                    for start, rows in zip(starts, asked, strict=False)
                ],
            ),
            self.storage,
        )
        return list(output.split_with_sizes([len(rows.tokens) for rows in requests]))

    def _settle(self, requests: Sequence[CommittedStates]) -> None:
        """Give the rows of the last anchors their slots, which they have by now."""
        num_heads, hidden = self.heads.num_heads, self.heads.hparams.hidden_size
        moved = [request for request in requests if request.first > 0]
        for request in requests:
            if request.seat.position != request.first:
                # Found in the prefix cache: zeros stand for the rows in front of these.
                request.seat.outputs = [
                    torch.zeros(hidden) if request.first > head else None
                    for head in range(num_heads)
                ]
                self._clear(request.seat.slots[0])
        self.storage.copy(
            np.array([request.seat.slots[0] for request in moved], np.int64),
            np.array([request.slots[request.first] for request in moved], np.int64),
        )

    def _clear(self, slot: int) -> None:
        where = torch.tensor([slot])
        for layer, keys in enumerate(self.storage.keys):
            zeros = torch.zeros(1, *keys.shape[1:])
            self.storage.write(layer, where, zeros, zeros if self.storage.has_values else None)


class DraftChains:
    """Drafts of several requests behind their anchors, a token of each at a time.

    A single head reads its own output of the token before. Of several the next one takes all
    drafts so far, behind its rows of the text, with the outputs of the one before.

    Args:
        tables: By request, slots of all positions in front of the anchor.
    """

    def __init__(
        self, passes: MtpPasses, seats: Sequence[Seat], tables: Sequence[IntArray]
    ) -> None:
        self._passes = passes
        self._seats = seats
        self._tables = tables
        self._is_single = passes.heads.num_heads == 1
        newest = [seat.outputs[0] for seat in seats]
        self._first = torch.stack([output for output in newest if output is not None])
        assert len(self._first) == len(seats), "the first head has a row of every anchor"
        nothing = self._first[:0]
        self._outputs = [
            self._first[place : place + 1] if self._is_single else nothing
            for place in range(len(seats))
        ]

    def first_logits(self) -> Tensor:
        """[requests, draft_vocab] float32 behind the anchors."""
        return self._passes.heads.logits(0, self._first)

    def newest_output(self, place: int) -> Tensor:
        """[hidden] output of the row that the request's last logits came from."""
        outputs = self._outputs[place]
        return outputs[-1] if len(outputs) else self._first[place]

    def extend(self, drafts: Mapping[int, Sequence[int]]) -> Tensor:
        """Logits behind drafts, [requests asked, draft_vocab] float32.

        Args:
            drafts: By place of the request, its drafts so far; all of one length, one more than in
                the last call.
        """
        depth = len(next(iter(drafts.values())))
        head = 0 if self._is_single else depth
        rows = [self._rows(place, tokens, head) for place, tokens in drafts.items()]
        outputs = self._passes.run(head, rows)
        for place, output in zip(drafts, outputs, strict=True):
            self._outputs[place] = output
        return self._passes.heads.logits(
            head, torch.stack([self.newest_output(place) for place in drafts])
        )

    def _rows(self, place: int, tokens: Sequence[int], head: int) -> _Rows:
        seat, depth = self._seats[place], len(tokens)
        table = np.concatenate([self._tables[place], seat.slots[: depth + 1]])[head + 1 :]
        if self._is_single:
            return _Rows(list(tokens[-1:]), self._outputs[place], table)
        anchor = seat.outputs[head - 1]
        known = [] if anchor is None else [anchor.unsqueeze(0)]
        hidden = torch.cat([*known, self._outputs[place]])
        # A text shorter than the head is deep has no row of it for the first drafts.
        count = min(depth, len(self._tables[place]))
        return _Rows(list(tokens[-count:]), hidden[-count:], table)


def _in_front(outputs: Tensor, newest: Tensor | None) -> Tensor:
    """What rows of the next head read: outputs of the tokens in front of theirs."""
    if newest is None:
        return outputs[:-1]
    return torch.cat((newest.unsqueeze(0), outputs[:-1]))


def chain_branch(first_row: int, num_rows: int, table: IntArray) -> Branch:
    """Rows of one text.

    Args:
        first_row: Place of the first in the pass.
        table: Slots of all rows of the text, these last.
    """
    return Branch(
        rows=np.arange(first_row, first_row + num_rows, dtype=np.int64),
        positions=np.arange(len(table) - num_rows, len(table), dtype=np.int64),
        slots=table,
    )
