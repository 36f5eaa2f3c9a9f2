"""Outermost layer: request ids, one log line and the HTTP metrics of every request."""

from __future__ import annotations

import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.server.context import Service
from slipstream.server.record import RequestRecord, attach_record

_LOGGER = logging.getLogger("slipstream.access")
_CLEAN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_QUIET = frozenset({"/health", "/ready", "/metrics"})
_KNOWN = _QUIET | {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/version",
}


class AccessLog:
    """Logs method, path, status, duration, ids and token counts; never text of the client."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id=self._request_id(scope))
        attach_record(scope, record)
        started_s = self._service.clock.now()
        status = 499  # nothing was sent: the client left

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = self._service.clock.now() - started_s
            self._service.metrics.answered(endpoint_label(scope["path"]), status, seconds)
            self._log(scope, record, status, seconds)

    def _request_id(self, scope: Scope) -> str:
        given = Headers(scope=scope).get("x-request-id", "")
        return given if _CLEAN_ID.fullmatch(given) else self._service.new_id("req")

    def _log(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        if not self._service.config.access_log:
            return
        fields: dict[str, object] = {
            "method": scope["method"],
            "path": scope["path"][:256],
            "status": status,
            "duration_s": round(seconds, 6),
            "request_id": record.request_id,
            "response_id": record.response_id,
            "prompt_tokens": record.num_prompt_tokens,
            "output_tokens": record.num_output_tokens,
            "error": record.error,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        _LOGGER.log(level, "request", extra={"fields": known})


def endpoint_label(path: str) -> str:
    """A route for the metrics' label; what a client invents is `other`."""
    if path in _KNOWN:
        return path
    return "/v1/models/{id}" if path.startswith("/v1/models/") else "other"
