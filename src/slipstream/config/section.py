"""What every section of the configuration shares: frozen, closed, finite numbers, typed values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


class Section(BaseModel):
    """Base of all configuration classes: nothing writes to one after it is built."""

    # Strict, because pydantic would else read `true` as the number 1.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, strict=True
    )


def parse_bytes(value: object) -> object:
    """Number of bytes from `1073741824`, `"1GiB"` or `"1.5 GB"`; other types pass through.

    Raises:
        ValueError: The text is not a size, or not a whole number of bytes.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'must be a number of bytes or a size such as "2GiB", got "{value}"')
    num_bytes = float(match[1]) * _UNITS[(match[2] or "b").lower()]
    if num_bytes != int(num_bytes):
        raise ValueError(f'must be a whole number of bytes, got "{value}"')
    return int(num_bytes)


def tagged(value: object) -> object:
    """A bare name as the tagged union's member of that kind."""
    return {"kind": value} if isinstance(value, str) else value


# Any: pydantic types JSON Schema as a plain dict.
_SIZE_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}],
    "examples": ["2GiB", 1073741824],
}

ByteSize = Annotated[int, BeforeValidator(parse_bytes), WithJsonSchema(_SIZE_SCHEMA)]
"""Bytes; a file may write `2GiB` (1024-based) or `2GB` (1000-based)."""

FilePath = Annotated[Path, Field(strict=False), AfterValidator(Path.expanduser)]
"""A path; `~` is the home folder, a relative path is relative to the current folder."""
