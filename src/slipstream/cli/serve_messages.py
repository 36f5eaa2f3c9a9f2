"""What a person at the terminal sees while the service lives."""

from __future__ import annotations

import json
import shlex

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from slipstream.engine.messages import EngineInfo


class Messages:
    """Tells that the service listens, is ready, and stops."""

    def __init__(
        self,
        model: str,
        console: Console | None = None,
        *,
        needs_key: bool = False,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._model = model
        self._needs_key = needs_key
        self._url = ""

    def listening(self, url: str) -> None:
        self._url = url
        self._console.print(
            f"{url} is up, loading {self._model} ...", style="dim", markup=False, soft_wrap=True
        )

    def ready(self, info: EngineInfo) -> None:
        drafters = ", ".join(info.drafters) or "none (speculation is off)"
        facts = Text.assemble(
            (self._model, "bold"),
            " is ready at ",
            (self._url, "bold"),
            f"\ncontext {info.max_model_len} tokens, KV cache {info.kv_tokens} tokens, "
            f"drafters: {drafters}",
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
