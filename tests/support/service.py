"""A service over a fake engine, and clients that talk to it in this process."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette

from slipstream.clock import SystemClock
from slipstream.config.server import ServerConfig
from slipstream.observability.api_metrics import ApiMetrics
from slipstream.server.app import create_app
from slipstream.server.context import Service
from slipstream.server.lifecycle import Lifecycle
from tests.support.fake_engine import ByteTokenizer, FakeEngine, LineTemplate

MODEL = "org/fake"


def service_over(
    engine: FakeEngine,
    *,
    config: ServerConfig | None = None,
    api_keys: tuple[str, ...] = (),
    has_template: bool = True,
) -> Service:
    """A service around `engine`, with a fixed source of seeds."""
    settings = config or ServerConfig()
    return Service(
        config=settings,
        model=MODEL,
        engine=engine,
        tokenizer=ByteTokenizer(),
        template=LineTemplate() if has_template else None,
        metrics=ApiMetrics(),
        lifecycle=Lifecycle(settings.max_concurrency),
        clock=SystemClock(),
        rng=random.Random(7),
        version="1.2.3",
        api_keys=frozenset(api_keys),
    )


def client_of(service: Service, **headers: str) -> httpx.AsyncClient:
    """An HTTP client of the service's application, in this process."""
    transport = httpx.ASGITransport(create_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


def chat_body(**fields: Any) -> dict[str, Any]:
    """A small chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    """A small completion request."""
    return {"model": MODEL, "prompt": "Hi", **fields}


def events_of(body: str) -> list[Any]:
    """The JSON events of a stream, and the string `[DONE]`."""
    events = []
    for block in body.split("\n\n"):
        if block:
            assert block.startswith("data: ")
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events


@dataclass
class RawCall:
    """One ASGI call whose client can leave; collects what the application sends."""

    app: Starlette
    path: str
    body: bytes
    messages: list[dict[str, Any]] = field(default_factory=list)
    has_left: asyncio.Event = field(default_factory=asyncio.Event)
    _has_sent: bool = False

    async def run(self) -> None:
        """Make the call, until the application returns."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(dict(message))


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
