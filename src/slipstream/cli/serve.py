"""`slipstream serve`: the whole service from one command."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from slipstream import __version__
from slipstream.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SpeculationOption,
    load,
    speculation_flag,
)
from slipstream.config.schema import Config
from slipstream.config.secrets import load_api_keys
from slipstream.engine.messages import EngineInfo
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
    effective = load(config, settings, flags | speculation_flag(speculation))
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
    drafters = ", ".join(item.name for item in config.speculation.drafters)
    messages = Messages(
        service.model, drafters or "none (speculation is off)", needs_key=bool(api_keys)
    )
    hooks = Hooks(messages.listening, messages.ready, messages.draining)
    await run_server(service, hooks)


def _seed_source(seed: int | None) -> random.Random:
    return random.SystemRandom() if seed is None else random.Random(seed)


class Messages:
    """What a person at the terminal sees while the service lives."""

    def __init__(
        self,
        model: str,
        drafters: str,
        console: Console | None = None,
        *,
        needs_key: bool = False,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._model = model
        self._drafters = drafters
        self._needs_key = needs_key
        self._url = ""

    def listening(self, url: str) -> None:
        self._url = url
        self._console.print(
            f"{url} is up, loading {self._model} ...", style="dim", markup=False, soft_wrap=True
        )

    def ready(self, info: EngineInfo) -> None:
        facts = Text.assemble(
            (self._model, "bold"),
            " is ready at ",
            (self._url, "bold"),
            f"\ncontext {info.max_model_len} tokens, KV cache {info.kv_tokens} tokens, "
            f"drafters: {self._drafters}",
        )
        self._console.print(Panel(facts, expand=False))
        # Without a frame and never cut, so that it can be copied from any terminal.
        self._console.print(self._example(), markup=False, highlight=False, soft_wrap=True)

    def _example(self) -> str:
        messages = [{"role": "user", "content": "Hello!"}]
        body = {"model": self._model, "temperature": 0, "messages": messages}
        key = "  -H 'Authorization: Bearer KEY' \\\n" if self._needs_key else ""
        return (
            f"curl {self._url}/v1/chat/completions \\\n"
            "  -H 'Content-Type: application/json' \\\n"
            f"{key}  -d {shlex.quote(json.dumps(body))}\n"
        )

    def draining(self, num_requests: int) -> None:
        subject = "1 request is" if num_requests == 1 else f"{num_requests} requests are"
        waiting = f"; {subject} finishing (again: stop now)"
        self._console.print(f"[dim]stopping{waiting if num_requests else ''}[/dim]")
