"""`slipstream train calibrate` and `slipstream train eval`: what a trained drafter is worth."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import CacheOption, DataOption, RunArgument, open_target

if TYPE_CHECKING:  # it imports torch
    from slipstream.training.evaluate import EvaluationRow

CALIBRATION_FILE = "calibration.json"
SideOption = Annotated[
    bool,
    typer.Option("--held-out/--trained", help="Answers that were held out, or those trained on."),
]


def evaluate(
    run: RunArgument,
    *,
    data: DataOption,
    cache: CacheOption = None,
    held_out: SideOption = True,
    max_answers: Annotated[int, typer.Option(min=1, help="Of these at most.")] = 400,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Acceptance along the target's own answers, by category and depth, without the engine."""
    effective = load(config, settings, {"model.source": model})
    from slipstream.training.dataset import open_dataset
    from slipstream.training.evaluate import evaluate as measure
    from slipstream.training.objectives import objective_of
    from slipstream.training.run_folder import write_json
    from slipstream.training.session import open_source, restore_run

    target = open_target(effective)
    restored = restore_run(run, target)
    dataset = open_dataset(data, target.identity)
    chosen = restored.record.settings
    source = open_source(target, dataset, chosen.net.tap_layer_ids, cache)
    rows = measure(
        restored.net,
        objective_of(chosen, restored.net),
        chosen.fit,
        source,
        dataset.answers,
        dataset.indices("validation" if held_out else "train")[:max_answers],
        chosen.net.max_draft_len,
    )
    if json_file is not None:
        write_json(json_file, [asdict(row) for row in rows])
    _print(rows, Console())


def calibrate(
    run: RunArgument,
    *,
    data: DataOption,
    cache: CacheOption = None,
    max_answers: Annotated[int, typer.Option(min=1, help="Of those held out.")] = 400,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Make the confidence head say how often drafts are accepted; writes calibration.json."""
    effective = load(config, settings, {"model.source": model})
    from slipstream.training.calibrate import calibrate as scale
    from slipstream.training.dataset import open_dataset
    from slipstream.training.evaluate import measured
    from slipstream.training.objectives import objective_of
    from slipstream.training.run_folder import write_json
    from slipstream.training.session import open_source, restore_run

    target = open_target(effective)
    restored = restore_run(run, target)
    dataset = open_dataset(data, target.identity)
    chosen = restored.record.settings
    source = open_source(target, dataset, chosen.net.tap_layer_ids, cache)
    results = measured(
        restored.net,
        objective_of(chosen, restored.net),
        chosen.fit,
        source,
        dataset.answers,
        dataset.indices("validation")[:max_answers],
    )
    calibration = scale(list(results))
    write_json(run / CALIBRATION_FILE, asdict(calibration))
    table = Table(box=None, header_style="bold")
    for heading in ("depth", "temperature", "error before", "error after"):
        table.add_column(heading, justify="right")
    for depth, temperature in enumerate(calibration.temperatures):
        before, after = calibration.errors_before[depth], calibration.errors_after[depth]
        table.add_row(str(depth + 1), f"{temperature:.2f}", f"{before:.1%}", f"{after:.1%}")
    Console().print(table)


def _print(rows: list[EvaluationRow], console: Console) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("answers")
    for heading in ("count", "drafts", "length, T = 1", "greedy", "greedy by depth"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.label,
            f"{row.num_answers:,}",
            f"{row.num_blocks:,}",
            f"{row.sampled_length:.2f}",
            f"{row.greedy_length:.2f}",
            " ".join(f"{share:.2f}" for share in row.greedy_shares),
        )
    console.print(table)
