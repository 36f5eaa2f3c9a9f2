"""The engine in a process of its own, supervised: crash, restart with back-off, give up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from slipstream import errors
from slipstream.config.schema import Config
from slipstream.engine.client import EngineState, RequestEvent
from slipstream.engine.messages import (
    Call,
    Cancel,
    Command,
    EngineInfo,
    Event,
    Failed,
    Heartbeat,
    PromptDone,
    Reply,
    StartFailed,
    Submit,
    Tokens,
    failure,
)
from slipstream.errors import (
    EngineFailureError,
    EngineUnavailableError,
    RequestCancelledError,
    StartupError,
)

TICK_S = 1.0
HANG_TICKS = 120
STABLE_TICKS = 60

_RETRY = "try again in a few seconds"

log = logging.getLogger("slipstream.supervisor")


class ProcessEngineClient:
    """Implements `EngineClient` over a child process.

    A crash ends the requests in flight with `EngineFailureError`; the child is started again after
    a back-off that doubles, at most `engine.restart_limit` times in a row (a minute of readiness
    ends a row). A start that fails for good (a broken checkpoint, say) is not tried again.

    Silence is counted in ticks of this process's own loop, not in wall time: when the whole
    process group is stopped and continued, both sides sleep and no time has passed.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-")
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._queues: dict[str, asyncio.Queue[RequestEvent]] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._silent_ticks = 0
        self._next_call = 0
        self._start_failure: errors.SlipstreamError | None = None
        self.info: EngineInfo | None = None
        self.state: EngineState = "starting"
        self.num_restarts = 0

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    @property
    def process_id(self) -> int | None:
        """Of the child; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def launch(self) -> None:
        """Begin to start the child; until `start` or `stop`, the caller may do other work."""
        self._supervisor = asyncio.create_task(self._supervise())
        while self._process is None and not self._supervisor.done():
            self._changed.clear()
            await self._changed.wait()

    async def start(self) -> None:
        """Start the child, if it was not launched, and wait until it is ready.

        Raises:
            SlipstreamError: It cannot start; the reason is the child's own.
        """
        if self._supervisor is None:
            await self.launch()
        while self.state not in ("ready", "failed"):
            self._changed.clear()
            await self._changed.wait()
        if self.state == "failed":
            await self.stop(0.0)
            raise self._start_failure or StartupError("the engine process did not start")

    async def stop(self, drain_s: float) -> None:
        """Refuse new requests, let running ones finish for `drain_s` seconds, end the child."""
        self._set_state("draining")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._end_child()
        self._fail_all(RequestCancelledError("the server is shutting down"))
        self._context.destroy(linger=0)
        self._folder.cleanup()

    async def submit(self, request: Submit) -> AsyncGenerator[RequestEvent, None]:
        """Events of one request; closing the iterator early cancels the request."""
        if self.state != "ready":
            error = EngineUnavailableError(f"the engine is {self.state}", hint=_RETRY)
            yield failure(request.request_id, error)
            return
        queue: asyncio.Queue[RequestEvent] = asyncio.Queue()
        self._queues[request.request_id] = queue
        self._idle.clear()
        num_unfinished = request.n
        is_ended = False
        try:
            await self._send(request)
            while not is_ended:
                event = await queue.get()
                if isinstance(event, Tokens) and event.finish_reason is not None:
                    num_unfinished -= 1
                is_ended = isinstance(event, Failed) or num_unfinished == 0
                yield event
        except EngineUnavailableError as error:
            is_ended = True
            yield failure(request.request_id, error)
        finally:
            self._queues.pop(request.request_id, None)
            if not self._queues:
                self._idle.set()
            if not is_ended and self.state in ("ready", "draining"):
                with contextlib.suppress(EngineUnavailableError):
                    await self._send(Cancel(request.request_id))

    async def call(self, method: str) -> Any:  # Any: the reply's type is the method's
        """Ask the engine something.

        Raises:
            EngineUnavailableError: It is not running.
            EngineFailureError: The call itself failed.
        """
        if self.state not in ("ready", "draining") or self._socket is None:
            raise EngineUnavailableError(f"the engine is {self.state}")
        self._next_call += 1
        call_id = str(self._next_call)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            await self._send(Call(call_id, method))
            return await future
        finally:
            self._calls.pop(call_id, None)

    async def _send(self, command: Command) -> None:
        """Hand `command` to the child.

        Raises:
            EngineUnavailableError: There is none, or it has just died.
        """
        gone = EngineUnavailableError("the engine process is gone", hint=_RETRY)
        if self._socket is None:
            raise gone
        try:
            # Waiting would be for a child that never comes: each has an address of its own.
            await self._socket.send(msgspec.msgpack.encode(command), zmq.NOBLOCK)
        except zmq.Again:
            raise gone from None

    async def _supervise(self) -> None:
        backoff_s = self._config.engine.restart_backoff_s
        num_failures = 0
        while True:
            num_ready_ticks = await self._run_child()
            if self._start_failure is not None:
                return self._set_state("failed")
            num_failures = 1 if num_ready_ticks >= STABLE_TICKS else num_failures + 1
            self._fail_all(EngineFailureError("the engine process ended unexpectedly"))
            if num_failures > self._config.engine.restart_limit:
                log.error("engine gave up after %d restarts", num_failures - 1)
                return self._set_state("failed")
            self._set_state("restarting")
            self.num_restarts += 1
            delay_s = backoff_s * 2 ** (num_failures - 1)
            log.error("engine process ended; restart %d in %.1f s", self.num_restarts, delay_s)
            await asyncio.sleep(delay_s)

    async def _run_child(self) -> int:
        """Run one child to its end; for how many ticks it had been ready."""
        address = f"ipc://{Path(self._folder.name) / f'engine-{self.num_restarts}.sock'}"
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.sndhwm = 0  # bounded by the requests that the server lets in
        self._socket.bind(address)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "slipstream.engine.worker", address, stdin=asyncio.subprocess.PIPE
        )
        assert self._process.stdin is not None, "the child was given a pipe"
        self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
        self._changed.set()
        self._silent_ticks = 0
        num_ready_ticks = 0
        ended = asyncio.create_task(self._process.wait())
        reader = asyncio.create_task(self._read(self._socket))
        try:
            while not ended.done():
                await asyncio.wait({ended, reader}, timeout=TICK_S, return_when="FIRST_COMPLETED")
                self._silent_ticks += 1
                num_ready_ticks += self.state == "ready"
                if self.state == "ready" and self._silent_ticks > HANG_TICKS:
                    log.error("the engine was silent for %d s: ending it", HANG_TICKS)
                    self._process.kill()
            if self.state == "ready":
                self._set_state("restarting")  # at once: nobody may be sent here any more
            await asyncio.wait({reader}, timeout=0.2)  # what it said last, such as StartFailed
            return num_ready_ticks
        finally:
            for task in (ended, reader):
                task.cancel()
            await self._end_child()

    async def _end_child(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(5.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        decoder = msgspec.msgpack.Decoder(list[Event])
        while True:
            for event in decoder.decode(await socket.recv()):
                self._silent_ticks = 0
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, PromptDone | Tokens | Failed):
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)
        elif isinstance(event, Reply):
            self._answer(event)
        elif isinstance(event, EngineInfo):
            self.info = event
            self._set_state("ready")
        elif isinstance(event, StartFailed):
            kind = getattr(errors, event.error, StartupError)
            self._start_failure = kind(event.message, hint=event.hint)
        else:
            assert isinstance(event, Heartbeat), f"unknown event {event}"

    def _answer(self, reply: Reply) -> None:
        future = self._calls.get(reply.call_id)
        if future is None or future.done():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(EngineFailureError(reply.error))

    def _fail_all(self, error: errors.RequestError) -> None:
        for request_id, queue in self._queues.items():
            queue.put_nowait(failure(request_id, error))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineUnavailableError(error.message))

    def _set_state(self, state: EngineState) -> None:
        if self.state != "draining" or state == "failed":
            self.state = state
        self._changed.set()
