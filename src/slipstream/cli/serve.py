"""`slipstream serve`: the whole service from one command."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream import __version__
from slipstream.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SpeculationOption,
    load_drafting,
)
from slipstream.config.schema import Config
from slipstream.config.secrets import load_api_keys
from slipstream.errors import TokenizerError

if TYPE_CHECKING:
    from slipstream.engine.client import EngineClient

app = typer.Typer(help="Serve a model over an OpenAI-compatible API.")


@app.command()
def serve(
    *,
    model: ModelOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (server.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    speculation: SpeculationOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Fetch the model if need be, start the engine and answer requests until told to stop."""
    flags = {"model.source": model, "server.host": host, "server.port": port}
    effective = load_drafting(config, settings, flags, speculation)
    asyncio.run(_serve(effective, frozenset(load_api_keys(effective.server, os.environ))))


async def _serve(config: Config, api_keys: frozenset[str]) -> None:
    from slipstream.cli.fetching import fetch_weights
    from slipstream.engine.process import ProcessEngineClient
    from slipstream.observability.logs import configure_logs
    from slipstream.server.listen import check_listen_address

    check_listen_address(
        config.server.host,
        has_keys=bool(api_keys),
        is_public_allowed=config.server.allow_public_without_auth,
    )
    configure_logs(config.observability.log_level, config.observability.log_format)
    path = fetch_weights(config)
    engine = ProcessEngineClient(config)
    await engine.launch()
    try:
        await _serve_with(config, api_keys, path, engine)
    finally:
        await engine.stop(0.0)  # where this process failed before it could serve


async def _serve_with(
    config: Config, api_keys: frozenset[str], path: Path, engine: EngineClient
) -> None:
    # Imported while the engine starts in a process of its own.
    from slipstream.cli.serve_messages import Messages
    from slipstream.clock import SystemClock
    from slipstream.observability.api_metrics import ApiMetrics
    from slipstream.server.context import Service
    from slipstream.server.lifecycle import Lifecycle
    from slipstream.server.run import Hooks
    from slipstream.server.run import serve as run_server
    from slipstream.tokenization.chat_template import load_chat_template
    from slipstream.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(config.model.tokenizer or path)
    try:
        template = load_chat_template(tokenizer, path=config.model.chat_template)
    except TokenizerError:
        if config.model.chat_template is not None:
            raise
        template = None  # chat requests are refused; completions work
    service = Service(
        config=config.server,
        model=config.model.public_name,
        engine=engine,
        tokenizer=tokenizer,
        template=template,
        metrics=ApiMetrics(),
        lifecycle=Lifecycle(config.server.max_concurrency),
        clock=SystemClock(),
        rng=_seed_source(config.engine.seed),
        version=__version__,
        api_keys=api_keys,
    )
    messages = Messages(service.model, needs_key=bool(api_keys))
    hooks = Hooks(messages.listening, messages.ready, messages.draining)
    await run_server(service, hooks)


def _seed_source(seed: int | None) -> random.Random:
    return random.SystemRandom() if seed is None else random.Random(seed)
