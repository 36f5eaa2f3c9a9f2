"""Which requests native calls draft for, and what a chain net keeps of each between calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from slipstream.execution.batch import IntArray
from slipstream.models.drafts.parts import LayerKv
from slipstream.models.native_net import NativeNet
from slipstream.speculation.drafter import DraftContext, TargetRows
from slipstream.speculation.growth import GrowthLimits
from slipstream.speculation.learned.begin import DraftingParts
from slipstream.speculation.learned.eagle import OwnRow
from slipstream.speculation.learned.native import Ask, NativeCall
from slipstream.speculation.learned.parts import DraftNetParts, MtpParts
from slipstream.speculation.tree import EMPTY_TREE, DraftTree


class NativeProposer(Protocol):
    """Drafts natively."""

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """A tree for each request."""


def propose_each(
    contexts: Sequence[DraftContext],
    limits: Sequence[GrowthLimits | None],
    native: NativeProposer | None,
    parts: DraftingParts,
    in_torch: Callable[[Sequence[Ask]], list[DraftTree]],
) -> list[DraftTree]:
    """A tree for each context: natively where nothing changes logits and no draws are wanted.

    Args:
        limits: None where nothing is drafted.
        in_torch: Drafts for any request.
    """
    trees = [EMPTY_TREE] * len(contexts)
    by_way: tuple[list[int], list[int]] = [], []
    for index, (context, limit) in enumerate(zip(contexts, limits, strict=True)):
        if limit is not None:
            by_way[native is not None and _is_plain(context, parts)].append(index)
    for indices, way in zip(
        by_way, (in_torch, native.propose if native else in_torch), strict=True
    ):
        asks = [(contexts[i], limit) for i in indices if (limit := limits[i]) is not None]
        if asks:
            for index, tree in zip(indices, way(asks), strict=True):
                trees[index] = tree
    return trees


def _is_plain(context: DraftContext, parts: DraftingParts) -> bool:
    """Whether the best of the net's own logits are wanted, and not draws with their laws."""
    return not context.wants_laws and parts.sampler.takes_logits_as_they_are(context.params)


class NativeBlocks:
    """A block net's native calls; it keeps nothing between them."""

    def __init__(self, name: str, net: NativeNet, parts: DraftNetParts) -> None:
        self.net = net
        self._call = NativeCall(name, net, parts)
        self._most = parts.num_spare_slots // net.struct.seat_slots

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        """Store what committed rows mean to the net."""
        self._call.learn(self.net.functions.sl_draft_inject, rows)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """See `NativeProposer`."""
        trees: list[DraftTree] = []
        for first in range(0, len(asks), self._most):
            some = asks[first : first + self._most]
            trees += self._call.draft(self.net.functions.sl_draft_blocks, some, range(len(some)))
        return trees


@dataclass(slots=True)
class _Seat:
    """A request's place in the memory of newest rows.

    Attributes:
        position: Of its newest committed row.
    """

    index: int
    position: int


class NativeChains:
    """A chain net's native calls, and the newest committed row of each request.

    There are as many seats as spare slots allow. Who needs one when none is free takes that of the
    request that was heard of longest ago; that one drafts again after its next step.
    """

    def __init__(self, name: str, net: NativeNet, parts: DraftNetParts | MtpParts) -> None:
        self.net = net
        self._call = NativeCall(name, net, parts)
        self._storage = parts.storage
        num_seats = parts.num_spare_slots // net.struct.seat_slots
        hidden = net.struct.passes.hidden_size
        self._hidden = np.zeros((num_seats, hidden), np.float32)
        self._normed = np.zeros((num_seats, hidden), np.uint16)
        net.struct.newest_hidden = self._hidden.ctypes.data
        net.struct.newest_normed = self._normed.ctypes.data
        self._seats: dict[str, _Seat] = {}
        self._free = list(range(num_seats))

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        """Compute rows of committed positions, and keep the newest of each request."""
        items = [_with_successors(item) for item in rows if item.next_tokens]
        most = len(self._hidden)
        for first in range(0, len(items), most):
            some = items[first : first + most]
            seats = [self._take_seat(item) for item in some]
            self._call.learn(self.net.functions.sl_draft_absorb, some, seats)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """See `NativeProposer`; every request has a newest row."""
        seats = [self._seats[context.request_id].index for context, _ in asks]
        return self._call.draft(self.net.functions.sl_draft_chains, asks, seats)

    def knows(self, request_id: str, position: int) -> bool:
        """Whether the request's newest row is kept and is the one at `position`."""
        seat = self._seats.get(request_id)
        return seat is not None and seat.position == position

    def newest(self, request_id: str) -> OwnRow:
        """The request's newest row, for torch."""
        slots, hidden = self.seat_of(request_id)
        seat, slot = self._seats[request_id].index, torch.from_numpy(slots[:1])
        layers = range(self._storage.num_layers)
        normed = torch.from_numpy(self._normed[seat].view(np.int16)).view(torch.bfloat16)
        return OwnRow(
            hidden=hidden,
            normed=normed.float(),
            layers=[LayerKv(*self._storage.gather(layer, slot)) for layer in layers],
        )

    def seat_of(self, request_id: str) -> tuple[IntArray, Tensor]:
        """The request's spare slots, its newest row's first, and what rows behind that one read."""
        seat, size = self._seats[request_id].index, self.net.struct.seat_slots
        first = self.net.struct.first_spare_slot + seat * size
        return np.arange(first, first + size), torch.from_numpy(self._hidden[seat])

    def release(self, request_id: str) -> None:
        """Forget the request's row."""
        seat = self._seats.pop(request_id, None)
        if seat is not None:
            self._free.append(seat.index)

    @property
    def num_bytes(self) -> int:
        """Memory of newest rows, apart from their slots."""
        seat_bytes: int = self._hidden[0].nbytes + self._normed[0].nbytes
        return seat_bytes * len(self._seats)

    def _take_seat(self, item: TargetRows) -> tuple[int, bool]:
        """The request's seat, and whether it holds the row in front of these."""
        seat = self._seats.pop(item.request_id, None)
        is_known = seat is not None and seat.position == len(item.slots) - len(item.rows) - 1
        if seat is None:
            if not self._free:
                self.release(next(iter(self._seats)))
            seat = _Seat(self._free.pop(), 0)
        seat.position = len(item.slots) - 1
        self._seats[item.request_id] = seat  # at the end: heard of last
        return seat.index, is_known


def _with_successors(item: TargetRows) -> TargetRows:
    """Without the last row of a finished text, which has no next token."""
    missing = len(item.rows) - len(item.next_tokens)
    if not missing:
        return item
    return replace(item, rows=item.rows[:-missing], slots=item.slots[:-missing])
