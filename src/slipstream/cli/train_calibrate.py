"""`slipstream train calibrate`: confidence that means what it says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import CacheOption, DataOption, RunArgument, open_target


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
    from slipstream.models.drafts.calibration import CALIBRATION_FILE
    from slipstream.training.calibrate import calibrate as scale
    from slipstream.training.dataset import open_dataset
    from slipstream.training.evaluate import measured
    from slipstream.training.run_folder import write_json
    from slipstream.training.session import open_source, restore_run
    from slipstream.weights.layout import DRAFT_FOLDER

    target = open_target(effective)
    restored = restore_run(run, target)
    dataset = open_dataset(data, target.identity)
    chosen = restored.record.settings.to_measure()
    source = open_source(target, dataset, chosen.net.tap_layer_ids, cache)
    results = measured(
        restored.net,
        restored.net.objective(chosen),
        chosen.fit,
        source,
        dataset.answers,
        dataset.indices("validation")[:max_answers],
    )
    calibration = scale(list(results))
    for folder in (run, run / DRAFT_FOLDER):  # exports take it from the first
        if folder.exists():
            write_json(folder / CALIBRATION_FILE, asdict(calibration))
    table = Table(box=None, header_style="bold")
    for heading in ("depth", "temperature", "error before", "error after"):
        table.add_column(heading, justify="right")
    for depth, temperature in enumerate(calibration.temperatures):
        before, after = calibration.errors_before[depth], calibration.errors_after[depth]
        table.add_row(str(depth + 1), f"{temperature:.2f}", f"{before:.1%}", f"{after:.1%}")
    Console().print(table)
