"""`slipstream doctor`: why something does not work, or why drafts are not accepted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.bench.document import check_writable, write_document
from slipstream.bench.prompts import (
    Message,
    Prompt,
    default_prompts,
    read_prompts,
    select_prompts,
)
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import provenance_of
from slipstream.config.schema import Config
from slipstream.errors import SlipstreamError

_PLAIN_WIDTH = 140
_NUM_PROMPTS = 6

app = typer.Typer(help="Examine machine, model and drafters, and say what is wrong.")


@app.command()
def doctor(
    *,
    drafter: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Examine this draft net, or these heads, instead of the configured drafters; "
            "the family is told by the files.",
        ),
    ] = None,
    acceptance: Annotated[
        bool,
        typer.Option(
            "--acceptance/--no-acceptance", help="Measure drafts along the target's answers."
        ),
    ] = True,
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", "-p", help="Their first turns instead of the built-in ones."),
    ] = None,
    max_prompts: Annotated[int, typer.Option(min=1, help="Evenly spaced.")] = _NUM_PROMPTS,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest answer.")] = 96,
    show_all: Annotated[
        bool, typer.Option("--all", help="List the conventions tried on healthy drafters, too.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Check kernels, threads, memory, files and templates, then every drafter.

    A draft net is measured teacher-forced on the target's own greedy answers, as its files say and
    by other conventions: layer ids off by one, order of taps, shifted states, rotary base, norms,
    embeddings and head, draft vocabulary, layout of the block. Exit status 1 means that something
    is wrong.
    """
    if json_file is not None:
        check_writable(json_file)
    effective = load(config, settings, {"model.source": model})
    asked = read_prompts(prompts) if prompts else default_prompts()
    from slipstream.cli.fetching import fetch_weights
    from slipstream.doctor.examine import Plan, examine
    from slipstream.doctor.findings import is_healthy
    from slipstream.doctor.report import document, print_report
    from slipstream.observability.logs import configure_logs

    configure_logs("error", effective.observability.log_format)  # findings say it
    if drafter is not None:
        effective = _with_drafter(effective, drafter)
    with suppress(SlipstreamError):  # examined below, beside everything else
        fetch_weights(effective)
    chosen = select_prompts(asked, max_prompts=max_prompts) if acceptance else []
    console = Console(stderr=True)
    with console.status("examining") as status:
        plan = Plan([_first_turn(item) for item in chosen], max_tokens)
        found = examine(effective, plan, status.update)
    if json_file is not None:
        about = {"provenance": provenance_of(prompts or [])}
        write_document(document(found, about), json_file)
    output = Console()
    print_report(
        found, output if output.is_terminal else Console(width=_PLAIN_WIDTH), has_all=show_all
    )
    if not is_healthy(found.findings):
        raise typer.Exit(1)


def _first_turn(prompt: Prompt) -> Sequence[Message]:
    if prompt.text is not None:
        return ({"role": "user", "content": prompt.text},)
    return next(prompt.turns())


def _with_drafter(config: Config, source: str) -> Config:
    """The configuration with one draft net alone."""
    from slipstream.doctor.drafter_files import net_config

    item = net_config(source, config.model)
    speculation = config.speculation.model_copy(update={"drafters": (item,)})
    return config.model_copy(update={"speculation": speculation})
