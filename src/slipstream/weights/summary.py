"""What a checkpoint is, told from its headers alone. No torch, no data read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.weights.gguf_config import architecture_of, config_from_gguf
from slipstream.weights.gguf_reader import read_gguf
from slipstream.weights.layout import GgufLayout, SafetensorsLayout, read_layout
from slipstream.weights.names import harmless_reason, map_gguf_name
from slipstream.weights.parts import special_parts, unserved_reason


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """The facts that decide whether and how a checkpoint can be served.

    Attributes:
        path: Where it lies.
        layout: "GGUF" or "safetensors, N files".
        family: `model_type` of its configuration.
        stored_as: Parameters by storage type, most first: {"Q4_1": 106_168_320, ...}.
        num_parameters: Values in all tensors; a shared input and output embedding counts once.
        num_bytes: Size of the weights files.
        context_len, vocab_size, head_dim: None if the configuration does not say.
        special_parts: What a plain decoder does not have (see `weights.parts`).
        unserved: Reason -> tensors that are left unread for it.
        is_tied: Whether the output head is the input embedding.
        has_template: Whether a chat template comes with it.
    """

    path: Path
    layout: str
    family: str
    stored_as: Mapping[str, int]
    num_parameters: int
    num_bytes: int
    context_len: int | None
    vocab_size: int | None
    head_dim: int | None
    special_parts: tuple[str, ...]
    unserved: Mapping[str, int]
    is_tied: bool
    has_template: bool


def summarize(path: Path) -> CheckpointSummary:
    """Describe the checkpoint at `path`; every header is checked on the way.

    Raises:
        WeightsError: as `read_layout` and `config_from_gguf`.
    """
    layout = read_layout(path)
    if isinstance(layout, GgufLayout):
        return _summarize_gguf(layout.path)
    return _summarize_safetensors(path, layout)


def _summarize_gguf(path: Path) -> CheckpointSummary:
    file = read_gguf(path)
    config = config_from_gguf(file)
    architecture, num_layers = architecture_of(file), config["num_hidden_layers"]
    names = (map_gguf_name(name, architecture, num_layers).name for name in file.tensors)
    stored = ((tensor.block.name, math.prod(tensor.shape)) for tensor in file.tensors.values())
    summary = _summary(
        path,
        "GGUF",
        config,
        stored,
        num_bytes=path.stat().st_size,
        is_tied=bool(config["tie_word_embeddings"]),
        has_template="tokenizer.chat_template" in file.metadata,
    )
    return _with_unserved(summary, names, config)


def _summarize_safetensors(path: Path, layout: SafetensorsLayout) -> CheckpointSummary:
    tensors = {
        name: tensor
        for shard in layout.headers.values()
        for name, tensor in shard.items()
        if harmless_reason(name) is None
    }
    num_files = len(layout.headers)
    summary = _summary(
        path,
        f"safetensors, {num_files} {'file' if num_files == 1 else 'files'}",
        layout.config,
        ((tensor.dtype, math.prod(tensor.shape)) for tensor in tensors.values()),
        num_bytes=sum(shard.stat().st_size for shard in layout.headers),
        is_tied="lm_head.weight" not in tensors,
        has_template=_has_template(layout.path),
    )
    return _with_unserved(summary, tensors, layout.config)


def _with_unserved(
    summary: CheckpointSummary, names: Iterable[str], config: Mapping[str, Any]
) -> CheckpointSummary:
    reasons = (unserved_reason(name, config) for name in names)
    return replace(summary, unserved=dict(Counter(filter(None, reasons))))


def _summary(
    path: Path,
    layout: str,
    config: Mapping[str, Any],
    stored: Iterable[tuple[str, int]],
    *,
    num_bytes: int,
    is_tied: bool,
    has_template: bool,
) -> CheckpointSummary:
    counts: Counter[str] = Counter()
    for storage, num_values in stored:
        counts[storage] += num_values
    text = {**config, **config.get("text_config", {})}  # multimodal models nest the language part
    return CheckpointSummary(
        path=path,
        layout=layout,
        family=str(text.get("model_type", "unknown")),
        stored_as=dict(counts.most_common()),
        num_parameters=counts.total(),
        context_len=text.get("max_position_embeddings"),
        vocab_size=text.get("vocab_size"),
        head_dim=_head_dim(text),
        special_parts=special_parts(config),
        unserved={},
        num_bytes=num_bytes,
        is_tied=is_tied,
        has_template=has_template,
    )


def _head_dim(config: Mapping[str, Any]) -> int | None:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    given = config.get("head_dim")
    if isinstance(given, int):
        return given
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False  # a broken tokenizer is the tokenizer's to report
    return isinstance(settings, dict) and bool(settings.get("chat_template"))
