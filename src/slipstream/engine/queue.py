"""Requests that wait for a place: bounded, ordered by priority, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engine.request import Request
from slipstream.errors import InvalidRequestError, QueueFullError


class RequestQueue:
    """Waiting requests. Each `starvation_s` of waiting counts as one level of priority, so a
    request of any priority is overtaken only for a bounded time.

    Args:
        max_len: Most waiting requests (each choice of `n` counts).
        starvation_s: Seconds of waiting that raise the priority by one.
    """

    def __init__(self, max_len: int, starvation_s: float) -> None:
        self._max_len = max_len
        self._starvation_s = starvation_s
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._requests.values()))

    def has_room(self, count: int) -> bool:
        """Whether `count` more requests fit."""
        return len(self._requests) + count <= self._max_len

    def add(self, requests: list[Request]) -> None:
        """Queue the choices of one submission, all or none.

        Raises:
            QueueFullError: They do not all fit now.
            InvalidRequestError: They never would.
        """
        if len(requests) > self._max_len:
            raise InvalidRequestError(
                f"n is {len(requests)}, and the queue of this server holds {self._max_len} "
                "(scheduler.max_queue_len); ask for fewer choices",
                param="n",
            )
        if not self.has_room(len(requests)):
            raise QueueFullError(
                f"the queue holds {len(self._requests)} of at most {self._max_len} waiting "
                f"requests, {len(requests)} more do not fit",
                hint="try again later, or raise scheduler.max_queue_len",
            )
        for request in requests:
            self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        """Return a preempted request; it keeps its arrival time and never meets the limit."""
        self._requests[request.request_id] = request

    def remove(self, request: Request) -> None:
        """Take a request out; a request that is not waiting is ignored."""
        self._requests.pop(request.request_id, None)

    def best(self, now_s: float) -> Request | None:
        """The request to admit next, left in the queue; None when none is ready."""
        ready = [request for request in self._requests.values() if _is_ready(request)]
        return min(ready, key=lambda request: self._rank(request, now_s), default=None)

    def _rank(self, request: Request, now_s: float) -> tuple[float, float, int]:
        waited_s = now_s - request.group.arrival_s
        level = request.group.submit.priority + waited_s // self._starvation_s
        return (-level, request.group.arrival_s, request.index)


def _is_ready(request: Request) -> bool:
    """Further choices wait until the first one has put the shared prompt into the cache."""
    return request.index == 0 or request.group.is_prompt_cached
