"""Fetch weights before anything heavy starts, with progress that a person can follow."""

from __future__ import annotations

from pathlib import Path

from slipstream.cli.progress import BarProgress
from slipstream.config.drafters import TARGET_SOURCE
from slipstream.config.model import ModelConfig
from slipstream.config.mtp import MtpConfig
from slipstream.config.schema import Config
from slipstream.config.speculation import (
    SHIPPED_SOURCE,
    DraftModelConfig,
    DraftNetConfig,
)
from slipstream.weights.sources import resolve_source

_ON_HAND = (TARGET_SOURCE, SHIPPED_SOURCE)


def fetch_weights(config: Config) -> Path:
    """Fetch all that the configuration names, nothing twice; returns where the target is."""
    path = resolve_source(config.model, progress=BarProgress())
    for item in config.speculation.drafters:
        if not isinstance(item, DraftModelConfig | DraftNetConfig | MtpConfig):
            continue
        if item.source not in _ON_HAND:
            source = ModelConfig(
                source=item.source,
                sha256=item.sha256,
                revision=item.revision,
                cache_dir=config.model.cache_dir,
            )
            resolve_source(source, progress=BarProgress())
    return path
