"""The constraints on one place of a request type, so that a refusal can teach all of them."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# Any throughout: an annotation may be a class, a union or an Annotated form.


def constraints_at(annotation: Any, location: Sequence[int | str]) -> Iterator[object]:
    """What `annotated_types` asks of the value at `location` (as pydantic's errors give it)."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if not location:
            yield from _unpacked(arguments[1:])
        yield from constraints_at(arguments[0], location)
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from constraints_at(member, location)
    elif not location:
        return
    elif origin in (list, tuple):
        yield from constraints_at(arguments[0], location[1:])
    elif origin is dict:
        yield from constraints_at(arguments[1], location[1:])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(location[0]))
        if field is not None:
            if len(location) == 1:
                yield from field.metadata
            yield from constraints_at(field.annotation, location[1:])


def _unpacked(metadata: Sequence[object]) -> Iterator[object]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item
