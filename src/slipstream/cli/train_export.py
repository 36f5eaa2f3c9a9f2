"""`slipstream train export`: a trained drafter in the layout that a server reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import RunArgument, open_target, provenance_of
from slipstream.errors import ConfigError

_DTYPES = ("bfloat16", "float16", "float32")


def export(
    run: RunArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    layout: Annotated[
        str, typer.Option(help="slipstream, or speculators, which vLLM reads as well.")
    ] = "slipstream",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Write the last checkpoint's drafter, with provenance.json beside it."""
    if dtype not in _DTYPES:
        raise ConfigError(f'--dtype must be one of {", ".join(_DTYPES)}, got "{dtype}"')
    if layout not in ("slipstream", "speculators"):
        raise ConfigError(f'--layout must be slipstream or speculators, got "{layout}"')
    effective = load(config, settings, {"model.source": model})
    import torch

    from slipstream.training.publish import export_run, tell_story
    from slipstream.training.session import restore_run

    target = open_target(effective)
    restored = restore_run(run, target)
    story = tell_story(restored.record, restored.progress, provenance_of([]))
    export_run(
        restored,
        target,
        out,
        "slipstream" if layout == "slipstream" else "speculators",
        getattr(torch, dtype),
        story,
    )
    Console().print(f"the drafter is in {out}")
