"""Request bodies: bytes to a JSON object, or a 400 that says where they are wrong."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from slipstream.errors import InvalidRequestError


def parse_object(body: bytes) -> dict[str, Any]:  # Any: JSON values, not yet validated
    """The JSON object in `body`.

    Nesting is limited to about 200 levels. NaN and Infinity are not JSON; a lone surrogate is
    not text.

    Raises:
        InvalidRequestError: Not UTF-8, not JSON, or not an object.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the request body must be UTF-8, byte {error.start} is not: {error.reason}"
        ) from None
    if not body.strip():
        raise InvalidRequestError("the request body is empty; send a JSON object")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(
            f"the request body is not valid JSON (at most 200 levels deep): {error}"
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"the request body must be a JSON object, got {type(value).__name__}"
        )
    return value
