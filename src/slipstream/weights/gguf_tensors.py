"""Tensors from a GGUF file under their public names, with the converter's changes undone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.weights.gguf_blocks import QuantizedTensor
from slipstream.weights.gguf_reader import GgufFile
from slipstream.weights.names import Mapped, map_gguf_name

_PLAIN_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "I64": torch.int64,
}


class GgufTensorReader:
    """Reads the tensors of a GGUF file.

    Args:
        num_layers: Of the decoder; layers behind are heads.
        num_heads, num_kv_heads: Undo the permutation of queries and keys.
    """

    def __init__(
        self,
        file: GgufFile,
        architecture: str,
        *,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
    ) -> None:
        self._file = file
        self._heads = {"query": num_heads, "key": num_kv_heads}
        self._sources: dict[str, tuple[str, Mapped]] = {}
        for gguf_name, tensor in file.tensors.items():
            mapped = map_gguf_name(gguf_name, architecture, num_layers)
            if mapped.name in self._sources:
                raise WeightsError(f"{file.path} has two tensors for {mapped.name!r}")
            if mapped.permuted_heads and tensor.shape[0] % (2 * self._heads[mapped.permuted_heads]):
                raise WeightsError(
                    f"{gguf_name!r} of {file.path} has {tensor.shape[0]} rows, which do not divide "
                    f"into {self._heads[mapped.permuted_heads]} heads of two halves"
                )
            self._sources[mapped.name] = (gguf_name, mapped)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor and its shape."""
        return {
            name: _public_shape(self._file.tensors[gguf].shape, mapped)
            for name, (gguf, mapped) in self._sources.items()
        }

    def read(self, name: str) -> Tensor:
        """The values: plain numbers as stored, everything else float32."""
        _, mapped = self._sources[name]
        stored = self._stored(name)
        dtype = _PLAIN_DTYPES.get(stored.block.name)
        if dtype is None:
            values = torch.from_numpy(stored.dequantize())
        else:
            # bytearray copies: torch accepts no read-only memory.
            values = torch.frombuffer(bytearray(stored.blocks), dtype=dtype).view(stored.shape)
        if mapped.is_negative_exp:
            return self._logarithms(name, values)
        return values - mapped.shift if mapped.shift else values

    def read_raw(self, name: str) -> QuantizedTensor | None:
        """The blocks, rows in the public order; None for plain numbers and shifted tensors."""
        _, mapped = self._sources[name]
        stored = self._stored(name)
        return stored if stored.block.is_quantized and not mapped.shift else None

    def _logarithms(self, name: str, values: Tensor) -> Tensor:
        """Of what was stored as -exp; in float64, so that the exponential rounds back."""
        if not bool((values < 0).all()):
            raise WeightsError(
                f"{self._sources[name][0]!r} of {self._file.path} must be negative everywhere: it "
                "holds -exp of the decays' logarithms",
                hint="convert the checkpoint again with a current llama.cpp",
            )
        return values.double().neg().log().float()

    def _stored(self, name: str) -> QuantizedTensor:
        gguf_name, mapped = self._sources[name]
        tensor, blocks = self._file.tensors[gguf_name], self._file.blocks(gguf_name)
        if mapped.permuted_heads:
            # Row 2i + j of a head is row j * half + i of the public layout.
            heads, num_rows = self._heads[mapped.permuted_heads], tensor.shape[0]
            rows = blocks.reshape(heads, num_rows // heads // 2, 2, -1)
            blocks = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(blocks.shape)
        return QuantizedTensor(tensor.block, _public_shape(tensor.shape, mapped), blocks)


def _public_shape(stored: tuple[int, ...], mapped: Mapped) -> tuple[int, ...]:
    """With the axis that the converter dropped, unless this one did not."""
    axis = mapped.dropped_axis
    if axis is None or len(stored) != axis + 1:
        return stored
    return (*stored[:axis], 1, *stored[axis:])
