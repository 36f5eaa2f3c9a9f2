"""`slipstream train export`: a trained drafter in the layout that a server reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import RunArgument, open_target, provenance_of
from slipstream.errors import ConfigError


def export(
    run: RunArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    layout: Annotated[
        str,
        typer.Option(help="slipstream; speculators, which vLLM reads; gguf, as llama.cpp's."),
    ] = "slipstream",
    stored: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="How matrices are stored: bfloat16, float16 or float32; in gguf q8_0, q4_1, q4_0, "
            "bf16 or f32. Not given: bfloat16, in gguf q8_0.",
        ),
    ] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Write the last checkpoint's drafter, with provenance.json beside it."""
    if layout not in ("slipstream", "speculators", "gguf"):
        raise ConfigError(
            f'--layout must be slipstream, speculators or gguf, got "{layout}"',
            hint="slipstream is what `slipstream serve` reads best",
        )
    effective = load(config, settings, {"model.source": model})
    from slipstream.training.publish import Layout, export_run, tell_story
    from slipstream.training.session import restore_run

    chosen: Layout = layout  # type: ignore[assignment]  # checked above
    default = "q8_0" if layout == "gguf" else "bfloat16"
    target = open_target(effective)
    restored = restore_run(run, target)
    story = tell_story(restored.record, restored.progress, provenance_of([]))
    export_run(restored, target, out, chosen, stored or default, story)
    num_bytes = sum(file.stat().st_size for file in out.glob("*") if file.is_file())
    Console().print(f"the drafter is in {out}, {num_bytes / 1e6:.1f} MB")
