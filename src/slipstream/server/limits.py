"""Who may enter: the concurrency limit and the closed door of a draining service."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.server.context import Service

ALWAYS_OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})


class Admission:
    """Counts requests in and out of the `Lifecycle`; probes and metrics are always let in."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS_OPEN:
            await self._app(scope, receive, send)
            return
        self._service.lifecycle.enter()
        self._service.metrics.request_started()
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.lifecycle.leave()
            self._service.metrics.request_ended()
