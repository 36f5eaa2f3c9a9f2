"""Tensors from safetensors files, mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.weights.gguf_blocks import QuantizedTensor
from slipstream.weights.layout import SafetensorsLayout


class SafetensorsReader:
    """Reads the tensors of one or several checked safetensors files."""

    def __init__(self, layout: SafetensorsLayout) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._holder: dict[str, Path] = {}
        for path, tensors in layout.headers.items():
            for name, stored in tensors.items():
                self._shapes[name] = stored.shape
                self._holder[name] = path
        self._handles: dict[Path, safe_open] = {}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor and its shape."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """The tensor, mapped from its file."""
        path = self._holder[name]
        try:
            if path not in self._handles:
                self._handles[path] = safe_open(path, framework="pt", device="cpu")
            # safetensors' handle is compiled code without types.
            tensor: Tensor = self._handles[path].get_tensor(name)  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError, AttributeError) as error:
            raise WeightsError(f"cannot read tensor {name!r} of {path}: {error}") from error
        return tensor

    def read_raw(self, name: str) -> QuantizedTensor | None:
        """None: the format has no quantised blocks."""
        return None
