"""The field table at work: what is refused before a request is read."""

from __future__ import annotations

import json
from typing import Any

from slipstream.errors import UnsupportedParameterError
from slipstream.protocol.base import unknown_field
from slipstream.protocol.errors import shown
from slipstream.protocol.fields import REQUEST_FIELDS, Endpoint, FieldSpec, fields_of


def honoured_fields(
    body: dict[str, Any],  # Any: JSON values, not yet validated
    endpoint: Endpoint,
) -> dict[str, Any]:
    """The fields of `body` that the endpoint's request type reads; nulls are dropped.

    Raises:
        InvalidRequestError: A field that does not exist.
        UnsupportedParameterError: A known field that asks for what this server cannot do.
    """
    known = fields_of(endpoint)
    kept = {}
    for name, value in body.items():
        spec = known.get(name)
        if spec is None:
            raise unknown_field(name, list(known))
        if value is None:
            continue
        if spec.status == "honoured":
            kept[name] = value
        elif not _is_neutral(value, spec):
            raise UnsupportedParameterError(_refusal(spec, value), param=name)
    return kept


def _is_neutral(value: object, spec: FieldSpec) -> bool:
    return any(_same(value, neutral) for neutral in spec.neutral)


def _same(left: object, right: object) -> bool:
    """Equality that does not take true for 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def _refusal(spec: FieldSpec, value: object) -> str:
    accepted = [json.dumps(neutral) for neutral in (None, *spec.neutral)]
    return f"{spec.name}: {spec.error}; got {shown(value)}, accepted: {', '.join(accepted)}"


def fields_table() -> str:
    """The Markdown table of all request fields, for the reference documentation."""
    rows = ["| Field | Endpoints | Status | Meaning, or why it is refused | Also accepted |"]
    rows.append("|---|---|---|---|---|")
    for spec in REQUEST_FIELDS:
        neutral = ", ".join(f"`{json.dumps(value)}`" for value in spec.neutral)
        status = f"{spec.status}: 400 `unsupported_parameter`" if spec.error else spec.status
        meaning = spec.meaning.replace("|", "\\|")
        rows.append(
            f"| `{spec.name}` | {', '.join(spec.endpoints)} | {status} | {meaning} | {neutral} |"
        )
    return "\n".join(rows) + "\n"
