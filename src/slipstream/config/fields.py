"""The schema as a list of settings, and where in it a path leads: for messages, text and docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from slipstream.config.annotations import accepts_none, alternatives, choices, element, models
from slipstream.config.drafters import INSTANCE_NAME
from slipstream.config.ranges import number_range
from slipstream.config.schema import Config
from slipstream.config.section import parse_bytes

_PATTERNS = {
    "^[0-9a-f]{64}$": "64 hexadecimal digits in lower case",
    INSTANCE_NAME: (
        "a name of at most 32 lower-case letters, digits, `_` and `-` that starts with a letter"
    ),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the schema.

    Attributes:
        path: Dotted; a tagged union adds the kind, `speculation.drafters[ngram].min_n`.
        field: What pydantic knows of it: annotation, default, description.
    """

    path: str
    field: FieldInfo


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads.

    Attributes:
        path: As a user writes it: `speculation.drafters[0].min_n`.
        steps: The field names and list indices in it.
        owner: The class whose field the path's last name is, or would be.
        kind: The owner's kind if it is one of a tagged union, else empty.
        field: None where there is no such field.
        expected: What belongs there, as the end of the sentence "it must be ...".
    """

    path: str
    steps: tuple[str | int, ...]
    owner: type[BaseModel]
    kind: str
    field: FieldInfo | None
    expected: str


def settings() -> Iterator[Setting]:
    """Every leaf of the schema, in the order of the classes."""
    yield from _leaves("", Config)


def _leaves(prefix: str, owner: type[BaseModel]) -> Iterator[Setting]:
    for name, field in owner.model_fields.items():
        path = f"{prefix}{name}"
        members = models(element(field.annotation) or field.annotation)
        if "" not in members:
            yield Setting(path, field)
        for kind, member in members.items():
            yield from _leaves(f"{path}[{kind}]." if kind else f"{path}.", member)


def locate(loc: Sequence[str | int]) -> Place:
    """Follows the location of a pydantic error, whose items may be tags of a union.

    Args:
        loc: Field names, list indices and kinds, from the top.
    """
    path = kind = ""
    steps: list[str | int] = []
    owner: type[BaseModel] = Config
    field: FieldInfo | None = None
    allowed = "a table"
    annotation: Any = Config
    for part in loc:
        members = models(annotation)
        if isinstance(part, int):
            path = f"{path}[{part}]"
            steps.append(part)
            annotation = element(annotation)
            allowed = f"a table whose kind is {_kinds(annotation)}"
        elif part in members:
            annotation = members[part]
        else:
            path = f"{path}.{part}" if path else part
            steps.append(part)
            kind, owner = next(iter(members.items()), ("", owner))
            field = owner.model_fields.get(part)
            annotation = field.annotation if field else None
            allowed = expected(field) if field else ""
    return Place(path, tuple(steps), owner, kind, field, allowed)


def find(path: Sequence[str]) -> FieldInfo | None:
    """The field at a dotted path from an environment variable or `--set`; None if there is none.

    Inside a tagged union the first class that has the name answers.
    """
    annotation: Any = Config
    field: FieldInfo | None = None
    for part in path:
        owners = [owner for owner in models(annotation).values() if part in owner.model_fields]
        if not owners:
            return None
        field = owners[0].model_fields[part]
        annotation = field.annotation
    return field


def expected(field: FieldInfo) -> str:
    """What the field takes, as the end of the sentence "it must be ..."."""
    suffix = " or null" if accepts_none(field.annotation) else ""
    return f"{_expected_value(field)}{suffix}"


def _expected_value(field: FieldInfo) -> str:
    members = set(alternatives(field.annotation))
    if kinds := _kinds(field.annotation):
        return f"a table whose kind is {kinds}"
    if (item := element(field.annotation)) is not None:
        return f"a list of tables, each with the kind {_kinds(item)}"
    if models(field.annotation):
        return "a table"
    if values := choices(field.annotation):
        return either(values)
    if bool in members:
        return "true or false"
    if _is_size(field):
        return f'a number of bytes or a size such as "2GiB"{_range(field).replace(" of", ",")}'
    if float in members:
        return f"a number{_range(field)}"
    if int in members:
        return f"a whole number{_range(field)}"
    if Path in members:
        return "a path"
    return _expected_text(field)


def _expected_text(field: FieldInfo) -> str:
    patterns = [getattr(item, "pattern", None) for item in field.metadata]
    known = [_PATTERNS[pattern] for pattern in patterns if pattern in _PATTERNS]
    return known[0] if known else "text"


def _kinds(annotation: Any) -> str:  # Any: see annotations.py
    return either([kind for kind in models(annotation) if kind])


def either(values: Sequence[str]) -> str:
    """The values in quotes, joined with commas and a last `or`."""
    quoted = [f'"{value}"' for value in values]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _is_size(field: FieldInfo) -> bool:
    metadata = list(field.metadata)
    for member in get_args(field.annotation):
        if get_origin(member) is Annotated:
            metadata.extend(get_args(member)[1:])
    return any(isinstance(item, BeforeValidator) and item.func is parse_bytes for item in metadata)


def _range(field: FieldInfo) -> str:
    words = number_range(field.metadata)
    return f" {words}" if words else ""
