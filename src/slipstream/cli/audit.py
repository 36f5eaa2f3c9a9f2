"""`slipstream audit`: prove that speculation changes nothing and that models are computed right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.audit.plan import parse_concurrencies, parse_samplings
from slipstream.bench.prompts import read_prompts, select_prompts
from slipstream.cli.auditing import (
    Wanted,
    audit_engine,
    audit_url,
    keep_named,
    output_console,
    progress_bar,
    publish,
    read_about,
)
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.errors import ConfigError

app = typer.Typer(
    help="Prove that speculation changes no token, and that models compute as published.",
    no_args_is_help=True,
)

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write everything, with provenance.")
]
PromptsOption = Annotated[
    list[Path],
    typer.Option("--prompts", "-p", help="JSON lines with `messages` or `prompt`; repeatable."),
]
OnlyOption = Annotated[
    str | None, typer.Option(metavar="ID,...", help="Only the prompts with these ids.")
]
SamplingOption = Annotated[
    str,
    typer.Option(
        help="greedy, t0.7 (top_p 0.9, penalties), t1.0, biased (logit_bias); seeded is t0.7,t1.0."
    ),
]
DraftersOption = Annotated[
    str | None,
    typer.Option(
        help="Sets: configured (as it is served), off, merge (all), instance names, or several "
        "joined by +. Not given: all of these and each instance alone."
    ),
]
ConditionsOption = Annotated[
    str | None,
    typer.Option(
        help="cold, warm (prefix cache), chunked (prefill), preempted, or several joined by +."
        " Not given: all four; with --url cold and warm."
    ),
]
DraftSourceOption = Annotated[
    str, typer.Option(help="Weights of the draft model, if the configuration has none.")
]
VacuousOption = Annotated[
    bool,
    typer.Option(
        "--allow-vacuous",
        help="Succeed also if nothing was accepted, rejected, found cached or preempted.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        help="Audit this server instead of an engine in this process; the first key of "
        "SLIPSTREAM_API_KEYS is sent."
    ),
]


@app.callback()
def audit() -> None:
    """Proofs whose exit status is the verdict."""


@app.command()
def lossless(
    *,
    prompts: PromptsOption,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Evenly spaced.")] = None,
    only: OnlyOption = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most output tokens of a turn.")] = 64,
    sampling: SamplingOption = "greedy,seeded,biased",
    concurrency: Annotated[str, typer.Option(help="Prompts that run together.")] = "1,8",
    drafters: DraftersOption = None,
    conditions: ConditionsOption = None,
    draft_source: DraftSourceOption = "target",
    allow_vacuous: VacuousOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Case i draws with seed + i.")] = 1,
    json_file: JsonOption = None,
    url: UrlOption = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Run every prompt with speculation off and on, and compare token by token.

    The reference is each prompt alone, cold, with speculation off. Status 0 needs equal answers,
    and drafts accepted and rejected, prefixes found and requests preempted (not with --url).
    """
    about = read_about(prompts, json_file)
    named = read_prompts(prompts) if only is None else keep_named(read_prompts(prompts), only)
    chosen = select_prompts(named, max_prompts=max_prompts)
    wanted = Wanted(
        samplings=parse_samplings(sampling),
        concurrencies=parse_concurrencies(concurrency),
        drafters=drafters,
        conditions=conditions,
        max_tokens=max_tokens,
        seed=seed,
    )
    if url is not None:
        if model is not None or config is not None or settings:
            raise ConfigError("--url audits a running server; --model, --config and --set do not")
        audited = audit_url(url, wanted, chosen)
    else:
        effective = load(config, settings, {"model.source": model})
        audited = audit_engine(effective, wanted, draft_source, chosen)
    report = audited.report
    is_equal = report.num_divergences == 0 and len(report.fingerprints) == 1
    is_proof = is_equal and not report.vacuous
    publish(audited, is_proof, about, json_file)
    if not is_equal or not (is_proof or allow_vacuous):
        raise typer.Exit(1)


@app.command()
def golden(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with fixtures, at any depth.")
    ],
    all_families: Annotated[
        bool, typer.Option("--all", help="Fail also where a family is not supported yet.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Load recorded checkpoints as a user would, recompute their outputs, and compare.

    Exit status 0 means that every fixture of a supported family passes.
    """
    about = read_about([], json_file)
    from slipstream.audit.golden import find_fixtures, judge
    from slipstream.audit.report import golden_document, write_json
    from slipstream.audit.tables import print_golden

    fixtures = find_fixtures(folder)
    with progress_bar() as bar:
        task = bar.add_task("recomputing", total=len(fixtures))
        results = []
        for fixture in fixtures:
            results.append(judge(fixture, folder))
            bar.advance(task)
    verdicts = {result.verdict for result in results}
    is_passed = "fail" not in verdicts and not (all_families and "not supported yet" in verdicts)
    print_golden(results, output_console())
    if json_file is not None:
        write_json(golden_document(results, is_passed=is_passed, about=about), json_file)
    if not is_passed:
        raise typer.Exit(1)
