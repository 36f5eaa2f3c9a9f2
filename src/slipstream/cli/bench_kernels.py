"""`slipstream bench kernels`: each native kernel against its twin and torch's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.bench.document import check_writable, write_document
from slipstream.bench.step_plan import parse_rows
from slipstream.cli.bench_progress import rounds_bar
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.clock import SystemClock
from slipstream.errors import ConfigError

FORMATS = ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q8_0:int8", "Q4_0:int8", "Q4_1:int8")


def kernels(
    *,
    rows: Annotated[
        str, typer.Option(help="Rows of a call, comma-separated.")
    ] = "1,2,4,8,16,32,64,128,512",
    formats: Annotated[str, typer.Option(help="Of weights; `:int8`: of rows too.")] = ",".join(
        FORMATS
    ),
    context_len: Annotated[int, typer.Option(min=1, help="Of attention, in tokens.")] = 500,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each way.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Time every native kernel at a model's shapes: bytes, bandwidth, and what it replaces."""
    counts, chosen = parse_rows(rows), _formats(formats)
    if json_file is not None:
        check_writable(json_file)
    effective = load(config, settings, {"model.source": model})
    import torch

    from slipstream.bench.kernel_run import KernelPlan, as_json, num_parts, run_kernels
    from slipstream.bench.kernel_tables import print_run
    from slipstream.bench.provenance import read_provenance
    from slipstream.cli.fetching import fetch_weights
    from slipstream.execution.cores import choose_num_threads, read_cores

    provenance = read_provenance(["slipstream", *sys.argv[1:]], [], SystemClock())
    path = fetch_weights(effective)
    torch.set_num_threads(choose_num_threads(effective.engine.num_threads, read_cores()))
    plan = KernelPlan(counts, chosen, context_len, repeats)
    with rounds_bar("measuring", num_parts(plan)) as advance:
        run = run_kernels(path, plan, provenance, SystemClock(), advance)
    if json_file is not None:
        write_document(as_json(run), json_file)
    print_run(run, Console())


def _formats(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in chosen if name not in FORMATS]
    if unknown:
        raise ConfigError(
            f'--formats has "{unknown[0]}"; the native kernels multiply {", ".join(FORMATS)}'
        )
    return chosen
