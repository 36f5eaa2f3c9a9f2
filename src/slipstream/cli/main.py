"""The `slipstream` command: one small file per subcommand, imported only when it is called.

So `slipstream --help` reads none of them, and a command pays only for what it uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from slipstream import __version__
from slipstream.errors import ConfigError, InvalidRequestError, SlipstreamError

DEBUG_VARIABLE = "SLIPSTREAM_DEBUG"

COMMANDS: dict[str, str] = {
    "serve": "Serve a model over an OpenAI-compatible API.",
    "chat": "Chat with a model in the terminal.",
    "generate": "Complete prompts and print or save the outputs.",
    "models": "Fetch, list, inspect, verify and remove model weights.",
    "config": "Show, check and describe the configuration.",
    "audit": "Prove that speculation changes no token, and that models compute as published.",
    "train": "Train a drafter for a model of yours.",
    "doctor": "Examine machine, model and drafters, and say what is wrong.",
    "bench": "Measure speculation, steps and kernels.",
}
"""Name -> help line. `slipstream.cli.<name>` holds the command as `app`, a `typer.Typer`."""


class LazyGroup(TyperGroup):
    """Knows its commands by name and help line, and imports the one that is called."""

    # Any: typer carries its own copy of click and does not export its types.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and placeholder else placeholder, rest


def load_command(name: str) -> Any:  # Any: see LazyGroup
    """The command object behind one name of `COMMANDS`."""
    command = get_command(import_module(f"slipstream.cli.{name}").app)
    # typer gives each app options to install completion; ours are on the top level.
    completion = ("install_completion", "show_completion")
    command.params = [param for param in command.params if param.name not in completion]
    return command


def build_app() -> typer.Typer:
    """The top-level command, with a placeholder for each subcommand."""
    app = typer.Typer(
        name="slipstream",
        cls=LazyGroup,
        help="LLM inference in which speculative decoding is the normal case.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_placeholder)
    return app


def _placeholder() -> None:
    """Never called: `LazyGroup` puts the real command in its place."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"slipstream {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
) -> None:
    """Options of the top level; `--version` ends the program in its callback."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 failed, 2 wrong configuration, usage or input.

    Args:
        argv: Arguments without the program's name; None takes those of the process.
    """
    try:
        get_command(build_app())(args=argv, prog_name="slipstream")
    except SlipstreamError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _print_error(error)
        sys.exit(2 if isinstance(error, ConfigError | InvalidRequestError) else 1)


def _print_error(error: SlipstreamError) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(error.message, err=True)
    if error.hint:
        typer.secho("hint: ", fg=typer.colors.CYAN, nl=False, err=True)
        typer.echo(error.hint, err=True)
