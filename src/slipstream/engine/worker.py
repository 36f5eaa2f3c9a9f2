"""The engine process: a loop that takes commands, steps the engine and sends events.

Started as `python -m slipstream.engine.worker ADDRESS` with the configuration as JSON on standard
input. Standard input stays open for as long as the parent lives; its end ends the worker.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import msgspec
import zmq

from slipstream.clock import SystemClock
from slipstream.config.schema import Config
from slipstream.engine.messages import (
    Call,
    Cancel,
    Command,
    Event,
    Heartbeat,
    Reply,
    StartFailed,
    Submit,
    failure,
)
from slipstream.errors import RequestError, SlipstreamError
from slipstream.observability.logs import configure_logs

if TYPE_CHECKING:
    from slipstream.engine.engine import Engine

IDLE_POLL_MS = 500
HEARTBEAT_S = 1.0

log = logging.getLogger("slipstream.engine")


class Worker:
    """Serves one engine over one zmq PAIR socket."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self._engine = engine
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._encoder = msgspec.msgpack.Encoder()
        self._clock = SystemClock()
        self._last_beat_s = 0.0

    def run(self) -> None:
        """Work until the process ends. An error of the engine itself is not survived here: the
        process dies, and its supervisor reports to the requests and starts another."""
        self.send([self._engine.info])
        while True:
            self._beat()
            self._take_commands(0 if self._engine.has_work else IDLE_POLL_MS)
            if self._engine.has_work:
                self.send(self._engine.step())

    def send(self, events: list[Event]) -> None:
        """Send the events of one step in one message."""
        if events:
            self._socket.send(self._encoder.encode(events))

    def _beat(self) -> None:
        now_s = self._clock.now()
        if now_s - self._last_beat_s >= HEARTBEAT_S:
            self._last_beat_s = now_s
            self.send([Heartbeat()])

    def _take_commands(self, wait_ms: int) -> None:
        while self._socket.poll(wait_ms):
            wait_ms = 0
            command = self._decoder.decode(self._socket.recv())
            if isinstance(command, Submit):
                self._submit(command)
            elif isinstance(command, Cancel):
                self._engine.cancel(command.request_id)
            else:
                self.send([self._answer(command)])

    def _submit(self, submit: Submit) -> None:
        try:
            self._engine.submit(submit)
        except RequestError as error:
            self.send([failure(submit.request_id, error)])

    def _answer(self, call: Call) -> Reply:
        try:
            return Reply(call.call_id, value=self._engine.call(call.method))
        except (SlipstreamError, AssertionError, TypeError) as error:
            return Reply(call.call_id, error=f"{type(error).__name__}: {error}")


def main(argv: list[str]) -> int:
    """Entry point of the engine process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when the engine ends,
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # after running requests have drained
    gc.disable()  # collections take a tenth of the start, and find nothing
    config = Config.model_validate_json(sys.stdin.readline())
    configure_logs(config.observability.log_level, config.observability.log_format)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.connect(argv[0])
    # Imported here because it brings torch, after collections are off.
    from slipstream.engine.build import build_engine

    try:
        engine = build_engine(config, SystemClock())
    except SlipstreamError as error:
        failed = StartFailed(type(error).__name__, error.message, error.hint)
        socket.send(msgspec.msgpack.encode([failed]))
        socket.close(linger=1000)
        context.term()
        return 1
    gc.freeze()  # what lives as long as the process is not looked through again
    gc.enable()
    Worker(engine, socket).run()
    return 0


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however it ended."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
