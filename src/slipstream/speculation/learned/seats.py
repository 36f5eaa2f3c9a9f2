"""Who sits where: spare slots of requests whose newest rows are in no slot of the target's."""

from __future__ import annotations

import numpy as np

from slipstream.speculation.learned.mtp import Seat


class Seats:
    """As many seats as spare slots allow.

    Who needs one when none is free takes that of the request that was heard of longest ago; that
    one drafts again after its next step.

    Args:
        num_slots: Of the storage; the last `num_spare_slots` are spare.
        size: Slots of a seat.
    Attributes:
        count: How many there are.
    """

    def __init__(self, num_slots: int, num_spare_slots: int, size: int) -> None:
        self._free = [
            Seat(np.arange(start, start + size, dtype=np.int64))
            for start in range(num_slots - num_spare_slots, num_slots - size + 1, size)
        ]
        self.count = len(self._free)
        self._taken: dict[str, Seat] = {}

    def take(self, request_id: str) -> Seat:
        """The request's, which has been heard of now."""
        seat = self._taken.pop(request_id, None)
        if seat is None:
            if not self._free:
                self.release(next(iter(self._taken)))
            seat = self._free.pop()
        self._taken[request_id] = seat  # at the end: heard of last
        return seat

    def of(self, request_id: str) -> Seat:
        """The request's, which it has."""
        return self._taken[request_id]

    def knows(self, request_id: str, position: int) -> bool:
        """Whether the request has a seat with the row of the token at `position`."""
        seat = self._taken.get(request_id)
        return seat is not None and seat.position == position

    def release(self, request_id: str) -> None:
        """Forget the request."""
        seat = self._taken.pop(request_id, None)
        if seat is not None:
            self._free.append(Seat(seat.slots))

    @property
    def num_bytes(self) -> int:
        """Memory of what seats hold, apart from their slots."""
        return sum(seat.nbytes for seat in self._taken.values())
