"""Metadata of a GGUF file, checked for its types."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from slipstream.errors import WeightsError
from slipstream.weights.gguf_reader import GgufFile

_Value = TypeVar("_Value", int, float, str, bool)


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


class MetadataReader:
    """Metadata keys with the architecture's prefix, checked for their type."""

    def __init__(self, file: GgufFile, architecture: str | None = None) -> None:
        self._file = file
        self._prefix = f"{architecture}." if architecture else ""

    def require(self, key: str, kind: type[_Value]) -> _Value:
        full = self._prefix + key
        if full not in self._file.metadata:
            raise WeightsError(f"{self._file.path} has no metadata key {full!r}, which is required")
        return self._checked(full, kind)

    def optional(self, key: str, default: _Value, kind: type[_Value]) -> _Value:
        full = self._prefix + key
        return self._checked(full, kind) if full in self._file.metadata else default

    def value(self, key: str) -> object:
        """Whatever is there, or None."""
        return self._file.metadata.get(self._prefix + key)

    def same_in_every_layer(self, key: str, default: int | None = None) -> int:
        """A number, which some files repeat for every layer."""
        value = self._file.metadata.get(self._prefix + key)
        if isinstance(value, list):
            if not value or any(item != value[0] for item in value):
                raise WeightsError(
                    f"{self._file.path} has layers of different sizes ({self._prefix + key}), "
                    "which is not supported"
                )
            return int(value[0])
        return self.require(key, int) if default is None else self.optional(key, default, int)

    def _checked(self, full: str, kind: type[_Value]) -> _Value:
        value = self._file.metadata[full]
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise WeightsError(
                f"metadata key {full!r} of {self._file.path} is {value!r}; "
                f"a value of type {kind.__name__} is expected"
            )
        return value
