"""`slipstream chat`: what is typed wrong ends neither the program nor the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.chat import app
from slipstream.errors import InvalidRequestError
from tests.support.tiny import write_tiny_checkpoint

SETTINGS = ("--set", "engine.num_threads=1", "--set", "memory.kv_bytes=16MiB")


def chat(path: Path, typed: str, *options: str) -> str:
    arguments = ["--model", str(path), "--max-tokens", "3", *SETTINGS, *options]
    result = CliRunner().invoke(app, arguments, input=typed, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny[/bold]")


@pytest.mark.parametrize("seed", ["abc", "-5", "1.5", "1 2", str(2**64), "9" * 5000])
def test_a_seed_that_is_none_is_refused_and_the_old_one_stays(model: Path, seed: str) -> None:
    shown = chat(model, f"/seed 7\n/seed {seed}\nhello\n/quit\n")
    assert "a seed is a whole number from 0 to" in shown
    assert "seed 7" in shown


def test_a_command_that_does_not_exist_is_not_sent_to_the_model(model: Path) -> None:
    shown = chat(model, "/help\n/quit\n")
    assert "there is no /help" in shown
    assert "3 tokens" not in shown


def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(model: Path) -> None:
    shown = chat(model, "x" * 5000 + "\nhello\n/quit\n")
    assert "error:" in shown
    assert "3 tokens" in shown


def test_impossible_parameters_are_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(InvalidRequestError, match="temperature must be at least 0"):
        chat(Path("nowhere"), "", "--temperature", "-3")
