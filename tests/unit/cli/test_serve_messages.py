"""What `slipstream serve` tells the person who started it."""

from __future__ import annotations

import io
import json
import shlex

import pytest
from rich.console import Console

from slipstream.cli.serve_messages import Messages
from slipstream.engine.messages import EngineInfo

URL = "http://127.0.0.1:8000"


def told(model: str, width: int = 80, *, needs_key: bool = False) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=width)
    messages = Messages(model, console, needs_key=needs_key)
    messages.listening(URL)
    messages.ready(engine_info(model))
    return shown.getvalue()


def engine_info(model: str) -> EngineInfo:
    return EngineInfo(
        model=model,
        vocab_size=320,
        max_model_len=512,
        eos_token_ids=(2,),
        fingerprint="fp_0",
        drafters=("suffix",),
        kv_tokens=1024,
        weight_bytes=1,
    )


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("model", ["SmolLM2-135M-Instruct", "a" * 120, "it's [/bold] a \\ [red]"])
def test_the_command_that_talks_to_it_can_be_copied_from_any_terminal(
    model: str, width: int
) -> None:
    command = told(model, width).partition("curl ")[2]

    words = shlex.split(command.replace("\\\n", " "))

    assert words[:3] == [f"{URL}/v1/chat/completions", "-H", "Content-Type: application/json"]
    assert json.loads(words[4])["model"] == model


@pytest.mark.parametrize("needs_key", [False, True])
def test_the_command_has_a_place_for_the_key_where_one_is_needed(needs_key: bool) -> None:
    assert ("'Authorization: Bearer KEY'" in told("m", needs_key=needs_key)) == needs_key


@pytest.mark.parametrize(
    ("num_requests", "text"),
    [(0, "stopping"), (1, "1 request is finish"), (2, "2 requests are finish")],
)
def test_stopping_names_the_requests_that_are_waited_for(num_requests: int, text: str) -> None:
    shown = io.StringIO()
    Messages("m", Console(file=shown, width=80)).draining(num_requests)
    assert text in shown.getvalue()
    assert ("finishing" in shown.getvalue()) == (num_requests > 0)
