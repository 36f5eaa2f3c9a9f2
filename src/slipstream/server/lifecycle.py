"""Whether the service takes requests, and how many it has."""

from __future__ import annotations

import asyncio

from slipstream.errors import EngineUnavailableError, QueueFullError


class Lifecycle:
    """Counts the requests in flight and closes the door when the service drains.

    Args:
        max_concurrency: Most requests in flight.
    """

    def __init__(self, max_concurrency: int) -> None:
        self._max_concurrency = max_concurrency
        self._num_in_flight = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    def enter(self) -> None:
        """Admit a request; every `enter` that returns is followed by one `leave`.

        Raises:
            EngineUnavailableError: The service drains.
            QueueFullError: `server.max_concurrency` requests are in flight.
        """
        if self._is_draining:
            raise EngineUnavailableError("the server is shutting down and takes no new requests")
        if self._num_in_flight >= self._max_concurrency:
            raise QueueFullError(
                f"{self._num_in_flight} requests are in flight, which is the limit "
                "(server.max_concurrency); try again shortly"
            )
        self._num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is done."""
        self._num_in_flight -= 1
        if self._num_in_flight == 0:
            self._idle.set()

    def begin_drain(self) -> None:
        """Take no new requests from now on."""
        self._is_draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False if some still are after `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
