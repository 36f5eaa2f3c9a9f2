"""Who may enter and how long they may stay."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.errors import RequestTimeoutError
from slipstream.server.context import Service

ALWAYS_OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})

_GRACE_S = 5.0


class Admission:
    """Counts requests in and out of the `Lifecycle`; probes and metrics are always let in.

    A request that exceeds `server.request_timeout_s` by `grace_s` is cut off here. The limit itself
    is kept where the answer is made, which can still say so; here ends what hangs elsewhere, such
    as a client that sends its body, or reads its answer, a byte a minute.
    """

    def __init__(self, app: ASGIApp, service: Service, grace_s: float = _GRACE_S) -> None:
        self._app = app
        self._service = service
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS_OPEN:
            await self._app(scope, receive, send)
            return
        self._service.lifecycle.enter()
        self._service.metrics.request_started()
        try:
            await self._within_time(scope, receive, send)
        finally:
            self._service.lifecycle.leave()
            self._service.metrics.request_ended()

    async def _within_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit_s = self._service.config.request_timeout_s
        timeout = asyncio.timeout(None if limit_s is None else limit_s + self._grace_s)
        try:
            async with timeout:
                await self._app(scope, receive, send)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RequestTimeoutError(
                f"the request took longer than {limit_s:g} seconds (server.request_timeout_s)"
            ) from None
