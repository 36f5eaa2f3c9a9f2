"""`slipstream bench`: measurements that say where they come from."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from slipstream.bench.document import check_writable
from slipstream.bench.plan import BenchPlan, parse_samplings
from slipstream.bench.prompts import Prompt, default_prompts, read_prompts, select_prompts
from slipstream.cli.bench_kernels import kernels
from slipstream.cli.bench_progress import rounds_bar
from slipstream.cli.bench_step import step
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.clock import SystemClock
from slipstream.config.schema import Config
from slipstream.config.secrets import API_KEYS_VARIABLE
from slipstream.errors import ConfigError

if TYPE_CHECKING:  # these import torch or matplotlib
    from slipstream.bench.measure import Measured
    from slipstream.bench.report import Report
    from slipstream.bench.target import BenchTarget

app = typer.Typer(help="Measure speculation, steps and kernels.", no_args_is_help=True)
app.command()(step)
app.command()(kernels)

PromptsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--prompts",
        "-p",
        help="JSON lines with `messages` or `prompt`, and perhaps `id` and `category`; "
        "repeatable. Not given: a small set of our own.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        help="Measure this server instead of an engine in this process; the first key of "
        "SLIPSTREAM_API_KEYS is sent.",
    ),
]
SamplingOption = Annotated[
    str, typer.Option(help="Comma-separated: greedy, seeded (T 0.7, top_p 0.95), t1.0, ...")
]
SharedOption = Annotated[
    bool,
    typer.Option(
        "--shared-memory",
        help="Let drafters and prefix cache learn across prompts, as in a service; otherwise "
        "every run starts from nothing.",
    ),
]


@app.callback()
def bench() -> None:
    """Measure, with provenance; `benchmarks/README.md` says how to read the numbers."""


@app.command()
def speculation(
    *,
    prompts: PromptsOption = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Evenly spaced.")] = None,
    per_category: Annotated[int | None, typer.Option(min=1, help="Of each category.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most output tokens of a turn.")] = 128,
    sampling: SamplingOption = "greedy,seeded",
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of everything.")] = 1,
    control: Annotated[bool, typer.Option("--control", help="Run off twice: the noise.")] = False,
    shared_memory: SharedOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Prompt i draws with seed + i.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG.")] = None,
    url: UrlOption = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Run the same prompts with speculation off and on, and say what limits the gain."""
    plan = BenchPlan(
        samplings=parse_samplings(sampling),
        max_tokens=max_tokens,
        concurrency=concurrency,
        rounds=rounds,
        has_control=control,
        is_memory_shared=shared_memory,
        seed=seed,
        nonce=secrets.token_hex(6),
    )
    chosen = select_prompts(
        read_prompts(prompts) if prompts else default_prompts(),
        max_prompts=max_prompts,
        per_category=per_category,
    )
    from slipstream.bench.provenance import read_provenance
    from slipstream.bench.report import build_report

    for path in (json_file, plot):
        if path is not None:
            check_writable(path)
    provenance = read_provenance(["slipstream", *sys.argv[1:]], prompts or [], SystemClock())
    if url is not None:
        if model is not None or config is not None or settings:
            raise ConfigError("--url measures a running server; --model, --config and --set do not")
        measured, facts = _measure_url(url, plan, chosen)
    else:
        effective = load(config, settings, {"model.source": model})
        measured, facts = _measure_engine(effective, plan, chosen)
    report = build_report(provenance, facts, plan, measured)
    _publish(report, json_file, plot)


def _measure_url(
    url: str, plan: BenchPlan, prompts: list[Prompt]
) -> tuple[Measured, dict[str, Any]]:
    import httpx

    from slipstream.bench.url_target import TIMEOUT_S, UrlTarget

    # A key in a flag would end up in the report's command line.
    api_key = os.environ.get(API_KEYS_VARIABLE, "").partition(",")[0].strip()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base_url = url.rstrip("/").removesuffix("/v1")
    with httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S) as client:
        target = UrlTarget(client, SystemClock())
        measured = _measure(target, plan, prompts)
        return measured, dict(target.facts)


def _measure_engine(
    config: Config, plan: BenchPlan, prompts: list[Prompt]
) -> tuple[Measured, dict[str, Any]]:
    if not config.speculation.drafters:
        raise ConfigError(
            "speculation.drafters is empty, so there is nothing to measure",
            hint="name at least one drafter, for example --set 'speculation.drafters=[\"suffix\"]'",
        )
    from slipstream.bench.engine_target import EngineTarget
    from slipstream.cli.loading import load_llm

    limits = {"queue_timeout_s": None, "request_timeout_s": None}  # it takes what it takes
    scheduler = config.scheduler.model_copy(update=limits)
    with load_llm(config.model_copy(update={"scheduler": scheduler})) as llm:
        target = EngineTarget(llm, SystemClock())
        measured = _measure(target, plan, prompts)
        sections = {"model", "memory", "scheduler", "speculation", "engine"}
        settings = config.model_dump(mode="json", include=sections)
        return measured, {**target.facts, "config": settings}


def _measure(target: BenchTarget, plan: BenchPlan, prompts: list[Prompt]) -> Measured:
    from slipstream.bench.measure import measure, num_measurements

    with rounds_bar("measuring", num_measurements(plan, prompts)) as advance:
        return measure(target, plan, prompts, advance)


def _publish(report: Report, json_file: Path | None, plot: Path | None) -> None:
    from slipstream.bench.report import write_json
    from slipstream.bench.tables import print_report

    if json_file is not None:
        write_json(report, json_file)
    if plot is not None:
        from slipstream.bench.plot import write_plot

        write_plot(report, plot)
    print_report(report, Console())
