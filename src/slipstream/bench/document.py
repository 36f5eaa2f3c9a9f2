"""A result as a file of JSON: checked before a long run, rounded when written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError

_DIGITS = 6


def check_writable(path: Path) -> None:
    """Find out before a long run whether its result can be written.

    Raises:
        ConfigError: The folder is missing or closed.
    """
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(
            f"{path} cannot be written", hint="name a file in a folder that exists and is yours"
        )


def write_document(document: Mapping[str, Any], path: Path) -> None:  # Any: JSON values
    """Write JSON, fractions rounded as `rounded` does."""
    path.write_text(json.dumps(rounded(document), indent=1) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:  # Any: JSON values
    """The same JSON values with six digits behind the point, tuples as lists."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
