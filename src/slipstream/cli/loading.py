"""Bring a model into this process."""

from __future__ import annotations

from rich.console import Console

from slipstream.cli.fetching import fetch_weights
from slipstream.config.schema import Config
from slipstream.engine.llm import LLM


def load_llm(config: Config) -> LLM:
    """An engine in this process."""
    fetch_weights(config)
    console = Console(stderr=True)
    with console.status(f"loading {config.model.public_name}"):
        return LLM(config=config)
