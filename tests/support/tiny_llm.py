"""Whole engines over tiny random weights, small enough to build one per test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.engine.llm import LLM
from tests.support.tiny import write_tiny_checkpoint

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "head_dim": 8}


def write_tiny_model(
    path: Path,
    family: str = "llama",
    seed: int = 1,
    **sizes: Any,  # as in write_tiny_checkpoint
) -> Path:
    """A checkpoint with the sizes above; the other tokens of its vocabulary are two letters."""
    return write_tiny_checkpoint(path, family, seed=seed, **(SIZES | sizes))


def tiny_llm(
    path: Path,
    drafters: list[Any] | None = None,  # Any: tables of settings
    settings: Mapping[str, Any] | None = None,
) -> LLM:
    """An engine over `path` with a fixed controller, float32 and one thread unless said otherwise.

    Args:
        drafters: None is speculation off.
    """
    defaults = {
        "model.dtype": "float32",
        "memory.kv_bytes": "4MiB",
        "memory.page_size": 4,
        "engine.num_threads": 1,
        "speculation.controller": "fixed",
        "speculation.drafters": drafters or [],
    }
    return LLM(str(path), settings=defaults | dict(settings or {}))
