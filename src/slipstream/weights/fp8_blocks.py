"""Safetensors whose matrices are 8-bit floats with one scale for each block of 128 x 128, or so.

DeepSeek-V3 and FP8 releases of other families are stored this way. A matrix is read as the float32
product of its values and scales, which is what its publishers define it to be.

Source: DeepSeek-V3's repository, inference/kernel.py, `weight_dequant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.weights.checkpoint import TensorReader
from slipstream.weights.gguf_blocks import QuantizedTensor

_SCALE = "_scale_inv"
_FIELD = "quantization_config"
Json = Mapping[str, Any]  # Any: JSON


def block_shape_of(config: Json) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where config.json tells of nothing of this kind.

    Raises:
        WeightsError: The checkpoint is quantised in another way.
    """
    stored = config.get(_FIELD)
    if not stored:
        return None
    method = stored.get("quant_method") if isinstance(stored, Mapping) else stored
    block = stored.get("weight_block_size") if isinstance(stored, Mapping) else None
    is_fp8 = method == "fp8" and stored.get("fmt", "e4m3") == "e4m3"
    if not is_fp8 or not (
        isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    ):
        raise WeightsError(
            f"the checkpoint is quantised by {method!r} (quantization_config); of safetensors, "
            "8-bit floats (quant_method fp8, fmt e4m3) with weight_block_size are read",
            hint="take the unquantised release, or a GGUF file in Q8_0, Q4_0 or Q4_1",
        )
    return block[0], block[1]


class BlockScaledReader:
    """See `TensorReader`: another reader's tensors, scaled; the scales themselves are hidden.

    Args:
        block_shape: Rows and columns that share a scale.
    """

    def __init__(self, reader: TensorReader, block_shape: tuple[int, int]) -> None:
        self._reader = reader
        self._block_shape = block_shape
        stored = reader.shapes()
        self._scaled = {name for name in stored if f"{name}{_SCALE}" in stored}
        scales = {f"{name}{_SCALE}" for name in self._scaled}
        self._shapes = {name: shape for name, shape in stored.items() if name not in scales}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor and its shape."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """The tensor; float32 where it has scales."""
        values = self._reader.read(name)
        if name not in self._scaled:
            return values
        scales = self._reader.read(f"{name}{_SCALE}").float()
        rows, columns = self._block_shape
        wanted = (-(-values.shape[0] // rows), -(-values.shape[-1] // columns))
        if values.ndim != 2 or tuple(scales.shape) != wanted:
            raise WeightsError(
                f"tensor {name} of shape {list(values.shape)} has scales of shape "
                f"{list(scales.shape)}; blocks of {rows} x {columns} need {list(wanted)}"
            )
        by_row = scales.repeat_interleave(rows, 0)[: values.shape[0]]
        return values.float() * by_row.repeat_interleave(columns, 1)[:, : values.shape[1]]

    def read_raw(self, name: str) -> QuantizedTensor | None:
        """None: these are no blocks that kernels multiply."""
        return None
