"""Passes of an EAGLE-3 net for the requests of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.execution.batch import IntArray
from slipstream.models.drafts.eagle3 import Eagle3Net, Eagle3Rows
from slipstream.models.drafts.parts import LayerKv
from slipstream.speculation.learned.kv import DraftKv


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Rows that the target has read and that stay.

    Attributes:
        taps: [rows, taps * target hidden] its states there.
        next_tokens: The token behind each row; the last one is the new anchor, or the prompt's
            next token where only a part of it was read.
        slots: [first + rows] slot of every position so far, these rows last.
    """

    taps: Tensor
    next_tokens: Sequence[int]
    slots: IntArray

    @property
    def first(self) -> int:
        """Position of the first of the rows."""
        return len(self.slots) - len(self.next_tokens)


@dataclass(frozen=True, slots=True)
class OwnRow:
    """One row that is in no slot: of one request, the anchor's or a drafted node's.

    Attributes:
        hidden, normed: [hidden] as in `Eagle3Rows`.
        layers: Keys and values [1, kv_heads, head_dim] by layer.
    """

    hidden: Tensor
    normed: Tensor
    layers: Sequence[LayerKv]

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        layers = sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
        return self.hidden.nbytes + self.normed.nbytes + layers


@dataclass(frozen=True, slots=True)
class NodeRows:
    """Draft nodes of one request that get a row.

    Attributes:
        slots: Slots of all positions in front of the anchor.
        rows: Rows in no slot so far: the newest committed one, then the nodes of this draft.
        tokens: Of the new nodes.
        parents: Index in `rows` of each new node's parent; 0 for children of the anchor.
        ancestors: Indices in `rows` that each new node sees, its parent and row 0 included.
    """

    slots: IntArray
    rows: Sequence[OwnRow]
    tokens: Sequence[int]
    parents: Sequence[int]
    ancestors: Sequence[Sequence[int]]


class Eagle3Passes:
    """Absorbs committed rows and extends drafts.

    Row j pairs position j's taps with token j + 1, so it stands for tokens up to j + 1 and lies in
    the slot of position j + 1. The newest row has no slot yet: whoever drafts keeps it.

    Args:
        kv: The net's storage, in the target's slots.
    """

    def __init__(self, net: Eagle3Net, kv: DraftKv) -> None:
        self.net = net
        self.kv = kv

    def absorb(self, committed: CommittedRows, newest: OwnRow | None) -> OwnRow:
        """Compute rows of one request and store them, but for the last, which is returned.

        Args:
            newest: What the last call returned for this request. Where rows were found in the
                prefix cache instead, there is none, and zeros stand for that one row.
        """
        first, slots = committed.first, committed.slots
        with torch.inference_mode():
            if first > 0:
                self.kv.write(
                    slots[first : first + 1], self._zeros() if newest is None else newest.layers
                )
            num_rows = len(committed.next_tokens)
            rows = self.net.extend(
                torch.tensor(committed.next_tokens).view(1, 1, -1),
                self.net.fuse(committed.taps).view(1, 1, num_rows, -1),
                torch.arange(first, first + num_rows).view(1, 1, -1),
                self.kv.context([slots[1 : first + 1]]),
                (),
                torch.ones(num_rows, num_rows, dtype=torch.bool).tril(),
            )
            layers = [LayerKv(layer.keys[0, 0], layer.values[0, 0]) for layer in rows.layers]
            stored = [LayerKv(layer.keys[:-1], layer.values[:-1]) for layer in layers]
            self.kv.write(slots[first + 1 :], stored)
            return _own_row(rows, 0, num_rows - 1)

    def extend(self, drafts: Sequence[NodeRows]) -> list[list[OwnRow]]:
        """Rows of new nodes, by request; all requests in one pass."""
        batch = len(drafts)
        num_own = max(len(draft.rows) for draft in drafts)
        num_new = max(len(draft.tokens) for draft in drafts)
        tokens = torch.zeros(batch, 1, num_new, dtype=torch.int64)
        positions = torch.zeros(batch, 1, num_new, dtype=torch.int64)
        hidden = torch.zeros(batch, 1, num_new, self.net.hparams.body.hidden_size)
        visible = torch.zeros(batch, 1, num_new, num_own + num_new, dtype=torch.bool)
        visible[..., num_own:] = torch.eye(num_new, dtype=torch.bool)
        for index, draft in enumerate(drafts):
            for row, parent in enumerate(draft.parents):
                tokens[index, 0, row] = draft.tokens[row]
                positions[index, 0, row] = len(draft.slots) - 1 + len(draft.ancestors[row])
                hidden[index, 0, row] = draft.rows[parent].hidden
                visible[index, 0, row, list(draft.ancestors[row])] = True
        with torch.inference_mode():
            context = self.kv.context([draft.slots[1:] for draft in drafts])
            earlier = self._earlier(drafts, num_own)
            rows = self.net.extend(tokens, hidden, positions, context, earlier, visible)
            return [
                [_own_row(rows, index, row) for row in range(len(draft.tokens))]
                for index, draft in enumerate(drafts)
            ]

    def logits(self, rows: Sequence[OwnRow]) -> Tensor:
        """[rows, draft_vocab] float32."""
        with torch.inference_mode():
            return self.net.head(torch.stack([row.normed for row in rows]))

    def _earlier(self, drafts: Sequence[NodeRows], num_own: int) -> list[LayerKv]:
        """By layer, [requests, 1, num_own, kv_heads, head_dim], zeros where there are fewer."""
        layers: list[LayerKv] = []
        body = self.net.hparams.body
        for index in range(body.num_layers):
            shape = (len(drafts), 1, num_own, body.kv_heads, body.head_dim)
            joined = LayerKv(torch.zeros(shape), torch.zeros(shape))
            for request, draft in enumerate(drafts):
                for place, row in enumerate(draft.rows):
                    joined.keys[request, 0, place] = row.layers[index].keys[0]
                    joined.values[request, 0, place] = row.layers[index].values[0]
            layers.append(joined)
        return layers

    def _zeros(self) -> list[LayerKv]:
        body = self.net.hparams.body
        nothing = torch.zeros(1, body.kv_heads, body.head_dim)
        return [LayerKv(nothing, nothing)] * body.num_layers


def _own_row(rows: Eagle3Rows, index: int, row: int) -> OwnRow:
    """A copy, so that it does not keep the rest of the pass in memory."""
    layers = [
        LayerKv(
            layer.keys[index, 0, row : row + 1].clone(),
            layer.values[index, 0, row : row + 1].clone(),
        )
        for layer in rows.layers
    ]
    return OwnRow(rows.hidden[index, 0, row].clone(), rows.normed[index, 0, row].clone(), layers)
