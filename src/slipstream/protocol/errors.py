"""Errors as the OpenAI API writes them."""

from __future__ import annotations

import json
import math

from pydantic import BaseModel, ConfigDict

from slipstream.errors import RequestError

_MAX_SHOWN_CHARS = 60


class ErrorDetail(BaseModel):
    """The object under `error`."""

    model_config = ConfigDict(frozen=True)

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The whole body of an error response, and of an error event in a stream."""

    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


def error_body(error: RequestError) -> ErrorBody:
    """The wire form of `error`; its hint, if any, follows the message."""
    message = error.message if error.hint is None else f"{error.message} ({error.hint})"
    return ErrorBody(
        error=ErrorDetail(message=message, type=error.kind, param=error.param, code=error.code)
    )


def shown(value: object) -> str:
    """A short JSON rendering of a request value, for error messages."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."
