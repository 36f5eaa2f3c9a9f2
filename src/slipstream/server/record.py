"""What one HTTP request leaves behind for the access log."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

_KEY = "slipstream.record"


@dataclass(slots=True)
class RequestRecord:
    """Filled in while the request is worked on; never holds text of the client.

    Attributes:
        request_id: The client's `X-Request-Id` if it is clean, else ours.
        response_id: Id of the completion, which is also what the engine calls the request.
        error: Code of the error that was reported, if one was.
    """

    request_id: str
    response_id: str | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    error: str | None = None


def attach_record(scope: Scope, record: RequestRecord) -> None:
    """Give the request its record."""
    scope[_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    """The request's record; a fresh one if the access log did not see the request."""
    record = scope.get(_KEY)
    if not isinstance(record, RequestRecord):
        record = RequestRecord(request_id="")
        attach_record(scope, record)
    return record
