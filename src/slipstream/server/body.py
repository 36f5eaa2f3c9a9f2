"""Reading a request body without trusting its size or kind."""

from __future__ import annotations

from starlette.requests import Request

from slipstream.errors import InvalidRequestError, RequestCancelledError, RequestTooLargeError
from slipstream.protocol.errors import shown


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, at most `max_bytes` of it; a larger one is not read to its end.

    The content type must be JSON: a web page of another origin can then not drive a server on
    its visitor's machine, because browsers ask first before they send JSON elsewhere.

    Raises:
        InvalidRequestError: Another content type.
        RequestTooLargeError: More than `max_bytes`.
        RequestCancelledError: The client left before the body was complete.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise InvalidRequestError(
            f"the header Content-Type must be application/json, got {shown(content_type)}"
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelledError("the client left before its request was complete")
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the request body is larger than {max_bytes} bytes (server.max_body_bytes)"
    )
