"""Questions about the type annotations of settings, for messages, text values and docs."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

# Any throughout: an annotation may be a class, a union, a Literal or an Annotated form.


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, `Annotated` unwrapped; the annotation itself if it is no union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def element(annotation: Any) -> Any | None:
    """The annotation of a sequence's elements; None if it is no sequence."""
    for member in alternatives(annotation):
        if get_origin(member) in (tuple, list):
            return get_args(member)[0]
    return None


def models(annotation: Any) -> Mapping[str, type[BaseModel]]:
    """The configuration classes that the annotation allows, by `kind` ("" for an untagged one)."""
    found: dict[str, type[BaseModel]] = {}
    for member in alternatives(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            field = member.model_fields.get("kind")
            found[str(field.default) if field else ""] = member
    return found


def choices(annotation: Any) -> tuple[str, ...]:
    """The values of a `Literal`, in order; empty if there is none."""
    return tuple(
        str(value)
        for member in alternatives(annotation)
        if get_origin(member) is Literal
        for value in get_args(member)
    )


def accepts_none(annotation: Any) -> bool:
    return types.NoneType in alternatives(annotation)


def is_text(annotation: Any) -> bool:
    """Whether only text fits (apart from null), so that `4` in a variable stays the text "4"."""
    members = [member for member in alternatives(annotation) if member is not types.NoneType]
    return bool(members) and all(
        member in (str, Path) or get_origin(member) is Literal for member in members
    )
