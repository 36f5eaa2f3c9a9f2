"""Every failure becomes an answer of the OpenAI API's shape, here and only here."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.errors import RequestError
from slipstream.protocol.errors import ErrorBody, ErrorDetail, error_body
from slipstream.server.context import Service
from slipstream.server.record import record_of

_LOGGER = logging.getLogger("slipstream.server")
_RETRY_AFTER_S = {429: "1", 503: "5"}
_INTERNAL = "internal_error"


class FailureBoundary:
    """Answers what the application raised; nothing passes beyond it.

    An answer that has begun cannot turn into an error; its connection is left to the server,
    which closes it. Streams report their own errors (`server.streaming`).
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:  # noqa: BLE001 - the one place where a request's faults end
            body, status = report(error, scope, self._service)
            if not has_started:
                await error_response(body, status)(scope, receive, send)


def report(error: Exception, scope: Scope, service: Service) -> tuple[ErrorBody, int]:
    """Count `error`, log it if it is ours, and give its wire form and status."""
    record = record_of(scope)
    if isinstance(error, RequestError):
        body, status = error_body(error), error.status
    else:
        _LOGGER.error(
            "a request failed inside the server",
            exc_info=error,
            extra={"fields": {"request_id": record.request_id}},
        )
        body, status = _internal_error(record.request_id), 500
    record.error = body.error.code
    service.metrics.failed(body.error.code or _INTERNAL)
    return body, status


def error_response(body: ErrorBody, status: int, headers: dict[str, str] | None = None) -> Response:
    """The response for an error."""
    all_headers = dict(headers or {})
    if status in _RETRY_AFTER_S:
        all_headers["retry-after"] = _RETRY_AFTER_S[status]
    if status == 401:
        all_headers["www-authenticate"] = "Bearer"
    return Response(
        body.model_dump_json(), status, headers=all_headers, media_type="application/json"
    )


async def routing_failure(request: Request, error: Exception) -> Response:
    """Answers of the router: no such URL, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        code = "method_not_supported"
        message = f"{request.method[:16]} is not allowed on {request.url.path[:256]}"
        allow = (error.headers or {}).get("Allow", "")
        message += f"; allowed: {allow}" if allow else ""
    else:
        code = "unknown_url"
        message = f"there is nothing at {request.method[:16]} {request.url.path[:256]}"
    record_of(request.scope).error = code
    body = ErrorBody(
        error=ErrorDetail(message=message, type="invalid_request_error", param=None, code=code)
    )
    return error_response(body, error.status_code, dict(error.headers or {}))


def _internal_error(request_id: str) -> ErrorBody:
    message = f"the server failed at this request; its log knows it as {request_id}"
    return ErrorBody(error=ErrorDetail(message=message, type="server_error", code=_INTERNAL))
