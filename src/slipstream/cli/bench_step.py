"""`slipstream bench step`: where the time of a step goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.bench.document import check_writable, write_document
from slipstream.bench.step_plan import StepRunPlan, parse_cases
from slipstream.cli.bench_progress import rounds_bar
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.clock import SystemClock


def step(
    *,
    rows: Annotated[str, typer.Option(help="Rows of the pass, comma-separated.")] = "1,8,16,64,512",
    context_len: Annotated[int, typer.Option(min=1, help="Tokens before the rows.")] = 500,
    shape: Annotated[
        str,
        typer.Option(
            help="What the rows are: draft (one request's), requests (one row each), prompt (a "
            "chunk), or auto: a draft up to 129 rows, then a prompt's chunk."
        ),
    ] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Of each case in a round.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Each runs all cases in turn.")] = 5,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Of every request; above 0 draws with noise.")
    ] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG.")] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Run real steps and say where their time goes, and what bandwidth would allow."""
    plan = StepRunPlan(
        parse_cases(rows, shape), context_len, steps, rounds, temperature=temperature
    )
    for path in (json_file, plot):
        if path is not None:
            check_writable(path)
    effective = load(config, settings, {"model.source": model})
    from slipstream.bench.provenance import read_provenance
    from slipstream.bench.step_run import as_json, run_steps
    from slipstream.bench.step_tables import print_run
    from slipstream.cli.fetching import fetch_weights

    provenance = read_provenance(["slipstream", *sys.argv[1:]], [], SystemClock())
    fetch_weights(effective)
    with rounds_bar("measuring", rounds) as advance:
        run = run_steps(effective, plan, provenance, SystemClock(), advance)
    if json_file is not None:
        write_document(as_json(run), json_file)
    if plot is not None:
        from slipstream.bench.step_plot import write_plot

        write_plot(run, plot)
    print_run(run, Console())
