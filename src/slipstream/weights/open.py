"""Open a checkpoint of any supported format."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import WeightsError
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.fp8_blocks import BlockScaledReader, block_shape_of
from slipstream.weights.gguf_config import architecture_of, config_from_gguf
from slipstream.weights.gguf_reader import read_gguf
from slipstream.weights.gguf_tensors import GgufTensorReader
from slipstream.weights.layout import GgufLayout, read_layout
from slipstream.weights.names import ROPE_FACTORS
from slipstream.weights.safetensors_reader import SafetensorsReader


def open_checkpoint(path: Path) -> Checkpoint:
    """Check every file of a checkpoint and open it; tensors are read when they are taken.

    Args:
        path: A folder (config.json with safetensors, or one .gguf), a .gguf or a .safetensors file.

    Raises:
        WeightsError: a file is missing, corrupt or of an unsupported kind; the message names it.
    """
    layout = read_layout(path)
    if isinstance(layout, GgufLayout):
        return _open_gguf(layout.path)
    reader, block_shape = SafetensorsReader(layout), block_shape_of(layout.config)
    if block_shape is None:
        return Checkpoint(path, layout.config, reader)
    return Checkpoint(path, layout.config, BlockScaledReader(reader, block_shape))


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    num_parts = file.metadata.get("split.count", 1)
    if num_parts > 1:
        raise WeightsError(
            f"{path} is one of {num_parts} parts of a split GGUF file",
            hint="join them with `llama-gguf-split --merge`",
        )
    config = config_from_gguf(file)
    reader = GgufTensorReader(
        file,
        architecture_of(file),
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
    )
    skipped = {}
    if ROPE_FACTORS in file.tensors:
        skipped[ROPE_FACTORS] = "its factors are expressed by rope_scaling of the configuration"
    return Checkpoint(path, config, reader, gguf_metadata=file.metadata, skipped=skipped)
