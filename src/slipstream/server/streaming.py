"""Answers that end when the client does: event streams, and work that is dropped on disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.errors import RequestCancelledError
from slipstream.protocol import sse
from slipstream.server.context import Service
from slipstream.server.failures import report

_T = TypeVar("_T")


async def unless_disconnected(
    receive: Receive,
    work: Coroutine[Any, Any, _T],  # Any: what a coroutine sends and takes is asyncio's
    service: Service,
) -> _T:
    """The result of `work`, which is cancelled when the client leaves first.

    Raises:
        RequestCancelledError: The client left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        service.metrics.disconnected()
        raise RequestCancelledError("the client left before its answer was complete")
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come; the first one was already produced.

    A failure after the start is sent as an event `data: {"error": ...}`, and like every stream
    that one ends with `data: [DONE]`, so a client never waits for more.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], service: Service) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
            media_type=self.media_type,
        )
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(scope, send), self._service)
        finally:
            await self._rest.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_part(send, self._first)
        try:
            async for chunk in self._rest:
                await _send_part(send, chunk)
        except Exception as error:  # noqa: BLE001 - the answer has begun: say it in the stream
            body, _ = report(error, scope, self._service)
            await _send_part(send, sse.event(body.model_dump_json()) + sse.DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def open_stream(
    request: Request, events: AsyncGenerator[bytes, None], service: Service
) -> EventStream:
    """A response that has its first event, so that an early failure still has its own status.

    Raises:
        RequestError: It failed before the first event, or the client left.
    """
    try:
        first = await unless_disconnected(request.receive, _first_of(events), service)
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, service)


async def _first_of(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})
