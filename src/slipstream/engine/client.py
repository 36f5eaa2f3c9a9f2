"""What the service may ask of an engine, wherever that engine runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

from slipstream.engine.messages import EngineInfo, Failed, PromptDone, Submit, Tokens

EngineState = Literal["starting", "ready", "restarting", "draining", "failed"]
RequestEvent = PromptDone | Tokens | Failed


class EngineClient(Protocol):
    """An engine in this process, in another one, or scripted for a test.

    All methods are called from one event loop.
    """

    @property
    def info(self) -> EngineInfo | None:
        """What the engine serves; None until it was ready for the first time."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a request submitted now would be taken: `state` is `ready`."""
        ...

    @property
    def state(self) -> EngineState:
        """`failed` is final: the engine is gone and will not be started again."""
        ...

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again after it had ended by itself."""
        ...

    async def start(self) -> None:
        """Bring the engine up and return when it is ready.

        Raises:
            SlipstreamError: It cannot come up; the message says why.
        """
        ...

    async def stop(self, drain_s: float) -> None:
        """Take no new request, let the running ones finish for `drain_s` seconds, then end all.

        A request that is cut off ends with `Failed` (RequestCancelledError).
        """
        ...

    def submit(self, request: Submit) -> AsyncGenerator[RequestEvent, None]:
        """Events of one request: a `PromptDone`, then `Tokens` of all choices, interleaved.

        Ends after the last choice's `Tokens` with a `finish_reason`, or after a `Failed`. The
        request is sent to the engine when the first event is asked for; closing the generator
        (or cancelling the task that waits on it) before its end cancels the request. Refusals
        (queue full, not ready) come as `Failed`, never as exceptions.
        """
        ...

    async def call(self, method: str) -> Any:  # Any: the reply's type is the method's
        """Ask the engine a question; see `slipstream.engine.messages.Call`.

        Raises:
            EngineUnavailableError: The engine does not answer now.
            EngineFailureError: The call itself failed.
        """
        ...
