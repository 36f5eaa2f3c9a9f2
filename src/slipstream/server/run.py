"""The life of the API process: listen, bring the engine up, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import uvicorn

from slipstream.engine.messages import EngineInfo
from slipstream.errors import StartupError
from slipstream.server.app import create_app
from slipstream.server.connection import HeadTimeoutProtocol
from slipstream.server.context import Service
from slipstream.server.listen import check_listen_address, open_listener, url_of

_LOGGER = logging.getLogger("slipstream.server")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_S = 0.2
_FLUSH_S = 2.0  # after the engine has ended all requests, their last bytes go out
_CLOSE_S = 2
_NUM_TOKENIZING = 2  # long prompts at once: the other processors belong to the engine


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the command line wants to hear.

    Attributes:
        on_listening: Gets the URL; the engine may still be starting.
        on_ready: The engine takes requests.
        on_draining: Gets the number of requests that are waited for.
    """

    on_listening: Callable[[str], None] = lambda _url: None
    on_ready: Callable[[EngineInfo], None] = lambda _info: None
    on_draining: Callable[[int], None] = lambda _num_requests: None


@dataclass(slots=True)
class _Stop:
    """The first signal asks for a drain, the second one for haste."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def on_signal(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end streams without a word."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(service: Service, hooks: Hooks | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain for `server.drain_timeout_s`.

    HTTP answers from the start: `/health` is live and `/ready` says 503 until the engine is up.

    Raises:
        StartupError: The address cannot or must not be used, or the engine failed for good.
        SlipstreamError: The engine did not come up.
    """
    hooks = hooks or Hooks()
    config = service.config
    check_listen_address(
        config.host,
        has_keys=bool(service.api_keys),
        is_public_allowed=config.allow_public_without_auth,
    )
    listener = open_listener(config.host, config.port)
    threads = ThreadPoolExecutor(_NUM_TOKENIZING, thread_name_prefix="tokenize")
    asyncio.get_running_loop().set_default_executor(threads)
    server = _Server(_uvicorn_config(service))
    stop = _Stop()
    with _signal_handlers(stop), contextlib.closing(listener):
        http = asyncio.create_task(_serve_http(server, listener))
        hooks.on_listening(url_of(listener))
        try:
            await _until_stopped(service, hooks, stop, http)
        finally:
            await _shut_down(service, hooks, stop)
            server.should_exit = True
            await http


def _uvicorn_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http=HeadTimeoutProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_S,
    )


async def _serve_http(server: uvicorn.Server, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])


@contextlib.contextmanager
def _signal_handlers(stop: _Stop) -> Generator[None, None, None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _until_stopped(
    service: Service, hooks: Hooks, stop: _Stop, http: asyncio.Task[None]
) -> None:
    """Returns when a signal came; raises when the service cannot go on."""
    engine = asyncio.create_task(_run_engine(service, hooks))
    asked = asyncio.create_task(stop.asked.wait())
    try:
        await asyncio.wait((engine, asked, http), return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return
        if engine.done():
            engine.result()
        if http.done():
            http.result()
        raise StartupError("the HTTP server ended by itself; see the log")
    finally:
        engine.cancel()
        asked.cancel()
        await asyncio.gather(engine, asked, return_exceptions=True)


async def _run_engine(service: Service, hooks: Hooks) -> None:
    """Start the engine, then watch it; ends only by raising."""
    await service.engine.start()
    info = service.engine.info
    assert info is not None  # a started engine has told what it is, even if it failed since
    _LOGGER.info("the engine is ready", extra={"fields": {"model": service.model}})
    hooks.on_ready(info)
    while service.engine.state != "failed":  # noqa: ASYNC110 - a state, not an event
        await asyncio.sleep(_POLL_S)
    raise StartupError(
        "the engine failed and was not started again", hint="see the engine's lines in the log"
    )


async def _shut_down(service: Service, hooks: Hooks, stop: _Stop) -> None:
    """Let running requests finish, end the rest, stop the engine."""
    service.lifecycle.begin_drain()
    hooks.on_draining(service.lifecycle.num_in_flight)
    drain = asyncio.create_task(service.engine.stop(service.config.drain_timeout_s))
    hurry = asyncio.create_task(stop.hurry.wait())
    await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not drain.done():
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await service.engine.stop(0.0)
    else:
        drain.result()
    if not await service.lifecycle.wait_idle(_FLUSH_S):
        _LOGGER.warning(
            "requests are cut off",
            extra={"fields": {"num_requests": service.lifecycle.num_in_flight}},
        )
