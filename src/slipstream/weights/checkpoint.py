"""A checkpoint: a configuration and tensors, each of which is used exactly once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.weights.gguf_blocks import QuantizedTensor
from slipstream.weights.names import harmless_reason

_MAX_NAMED = 8


class TensorReader(Protocol):
    """What a file format offers a `Checkpoint`. Names are the public (Hugging Face) ones."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor and its shape, without reading data."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor on the CPU, in memory of its own or mapped from the file."""
        ...

    def read_raw(self, name: str) -> QuantizedTensor | None:
        """The stored blocks, or None if the tensor is not stored in quantised blocks."""
        ...


class Checkpoint:
    """Tensors by their public names, and the bookkeeping that each is used once.

    Attributes:
        path: The file or folder it was opened from.
        config: The content of config.json (for GGUF: made from the metadata).
        gguf_metadata: The metadata of a GGUF file, None for other formats.
        skipped: Tensors that no model reads, with the reason; they count as used.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],  # JSON
        reader: TensorReader,
        *,
        gguf_metadata: Mapping[str, Any] | None = None,
        skipped: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.config = dict(config)
        self.gguf_metadata = gguf_metadata
        self._reader = reader
        self._shapes = dict(reader.shapes())
        self._taken: set[str] = set()
        self.skipped = dict(skipped or {})
        for name in self._shapes:
            if reason := harmless_reason(name):
                self.skipped[name] = reason

    def names(self) -> list[str]:
        """All tensors that a model can take, in the file's order."""
        return [name for name in self._shapes if name not in self.skipped]

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape; raises WeightsError if there is no such tensor."""
        self._require(name)
        return self._shapes[name]

    def take(self, name: str) -> Tensor:
        """Read a tensor, once.

        Returns: on the CPU, in its stored dtype; quantised blocks come as the exact float32.

        Raises:
            WeightsError: there is no such tensor, or it was taken before.
        """
        self._mark(name)
        return self._reader.read(name)

    def optional(self, name: str) -> Tensor | None:
        """As `take`, or None if there is no such tensor."""
        return self.take(name) if name in self._shapes else None

    def raw(self, name: str) -> QuantizedTensor | None:
        """The tensor's quantised blocks as stored; counts as taking it.

        None, and nothing is taken, if the tensor is not stored in quantised blocks.
        """
        self._require(name)
        if (blocks := self._reader.read_raw(name)) is not None:
            self._mark(name)
        return blocks

    def skip(self, name: str, reason: str) -> None:
        """Count a tensor as used although nothing reads it; `reason` goes into `skipped`."""
        self._mark(name)
        self.skipped[name] = reason

    def finish(self, prefixes: tuple[str, ...] = ("",)) -> None:
        """Check that nothing is left.

        Args:
            prefixes: Only of tensors whose names begin like one of these.
        Raises:
            WeightsError: tensors were never taken; the message names them.
        """
        wanted = [name for name in self.names() if name.startswith(prefixes)]
        strays = [name for name in wanted if name not in self._taken]
        if strays:
            shown = ", ".join(strays[:_MAX_NAMED])
            more = f" and {len(strays) - _MAX_NAMED} more" if len(strays) > _MAX_NAMED else ""
            raise WeightsError(
                f"{self.path} has {len(strays)} tensors that the model does not use: {shown}{more}",
                hint=f"is model_type {self.config.get('model_type')!r} right for these weights?",
            )

    def _mark(self, name: str) -> None:
        self._require(name)
        if name in self._taken:
            raise WeightsError(f"tensor {name!r} of {self.path} is used a second time")
        self._taken.add(name)

    def _require(self, name: str) -> None:
        if name in self._shapes:
            return
        near = difflib.get_close_matches(name, self._shapes, n=3, cutoff=0.6)
        nearest = f"; nearest are {', '.join(near)}" if near else ""
        raise WeightsError(
            f"{self.path} has no tensor {name!r}{nearest}",
            hint="the weights do not fit the configuration, or a shard is missing",
        )
