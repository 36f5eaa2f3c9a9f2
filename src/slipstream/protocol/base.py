"""What all request and response types share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slipstream.config.ranges import length_range, number_range
from slipstream.errors import InvalidRequestError
from slipstream.protocol.constraints import constraints_at
from slipstream.protocol.errors import shown

Integer = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]

_EXPECTED = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "finite_number": "must be a finite number",
}
_OUT_OF_RANGE = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_COUNTED = {
    "too_short": "items",
    "too_long": "items",
    "string_too_short": "characters",
    "string_too_long": "characters",
}


def _is_none(value: object) -> bool:
    return value is None


def optional() -> Any:  # Any: pydantic's Field() has no type of its own
    """A response field that is left out when it is None."""
    return Field(default=None, exclude_if=_is_none)


class WireModel(BaseModel):
    """A response or a part of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestModel(BaseModel):
    """A request or a part of one: strict types, finite numbers, no unknown fields.

    Null means that a field is not given.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )
    label: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _keep_given(cls, data: Any) -> Any:  # Any: JSON, before validation
        if not isinstance(data, dict):
            return data
        for name in data:
            if name not in cls.model_fields:
                raise unknown_field(name, list(cls.model_fields), where=cls.label)
        return {name: value for name, value in data.items() if value is not None}


def unknown_field(name: str, known: list[str], *, where: str = "") -> InvalidRequestError:
    """The refusal of a field that does not exist; names the nearest one that does."""
    close = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.6)
    suggestion = f'; did you mean "{close[0]}"?' if close else ""
    place = f" in {where}" if where else ""
    return InvalidRequestError(f"unknown field {shown(name)}{place}{suggestion}", param=name[:64])


def translate(error: ValidationError, kind: type[BaseModel]) -> InvalidRequestError:
    """The first of pydantic's complaints about a `kind`, as a sentence of ours."""
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is required", param=param)
    allowed = _allowed(first["type"], constraints_at(kind, first["loc"]))
    if allowed:
        message = f"{param} must {allowed}, got {_measured(first['type'], first['input'])}"
    elif first["type"] in _EXPECTED:
        message = f"{param} {_EXPECTED[first['type']]}, got {shown(first['input'])}"
    else:
        reason = first["msg"][:1].lower() + first["msg"][1:]
        message = f"{param}: {reason}, got {shown(first['input'])}"
    return InvalidRequestError(message, param=param)


def _allowed(error_type: str, constraints: Iterable[object]) -> str:
    """All bounds of a number or a length that is out of them: "be from 1 to 128"."""
    if error_type in _OUT_OF_RANGE:
        words = number_range(constraints)
        return f"be {words}" if words else ""
    unit = _COUNTED.get(error_type)
    words = length_range(constraints, unit) if unit else ""
    return f"have {words}" if words else ""


def _measured(error_type: str, value: Any) -> str:  # Any: JSON
    return str(len(value)) if error_type in _COUNTED else shown(value)


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part[:64]}" if text else part[:64]
    return text
