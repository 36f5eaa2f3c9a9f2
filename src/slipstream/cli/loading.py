"""Bring a model into this process, with progress that a person can follow."""

from __future__ import annotations

from rich.console import Console

from slipstream.cli.progress import BarProgress
from slipstream.config.model import ModelConfig
from slipstream.config.schema import Config
from slipstream.config.speculation import DraftModelConfig
from slipstream.engine.llm import LLM
from slipstream.weights.sources import resolve_source


def fetch_weights(config: Config) -> None:
    """Fetch what the configuration names, with a bar; nothing is fetched twice."""
    resolve_source(config.model, progress=BarProgress())
    for item in config.speculation.drafters:
        if isinstance(item, DraftModelConfig) and item.source != "target":
            source = ModelConfig(
                source=item.source,
                sha256=item.sha256,
                revision=item.revision,
                cache_dir=config.model.cache_dir,
            )
            resolve_source(source, progress=BarProgress())


def load_llm(config: Config) -> LLM:
    """An engine in this process."""
    fetch_weights(config)
    console = Console(stderr=True)
    with console.status(f"loading {config.model.source}"):
        return LLM(config=config)
