"""`slipstream train cache`: the target's states on disk, to read them more than once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import (
    DataOption,
    TapsOption,
    choose_taps,
    count_bar,
    open_target,
)
from slipstream.errors import ConfigError


def cache(
    *,
    data: DataOption,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder to make or to complete; --estimate does without it."
        ),
    ] = None,
    taps: TapsOption = None,
    top: Annotated[
        int, typer.Option(min=1, help="Likeliest tokens to keep per place of an answer.")
    ] = 64,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say how large it would be, and write nothing.")
    ] = False,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Compute the states once; the same command goes on where it was interrupted."""
    if out is None and not estimate:
        raise ConfigError(
            "--out is missing: the states need a folder to be written to",
            hint="--out DIR writes them; --estimate says how large they would be, without --out",
        )
    effective = load(config, settings, {"model.source": model})
    from slipstream.training.cache import build_cache, estimate_bytes
    from slipstream.training.dataset import open_dataset
    from slipstream.training.families.family import spread_taps
    from slipstream.training.session import longest
    from slipstream.training.target import TargetReader

    target = open_target(effective)
    dataset = open_dataset(data, target.identity)
    layers = choose_taps(taps, None, spread_taps(target.identity.num_layers))
    reader = TargetReader(target.loaded, layers, top, longest(dataset))
    console = Console()
    console.print(
        f"{len(dataset.answers):,} answers, taps {', '.join(map(str, layers))}: "
        f"{estimate_bytes(dataset, reader) / 1e9:.3f} GB"
    )
    if estimate or out is None:
        return
    with count_bar("computing", len(dataset.answers)) as advance:
        build_cache(out, dataset, reader, advance)
