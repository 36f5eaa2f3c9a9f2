"""How every command takes its configuration: `--config FILE`, `--set`, and a few named flags."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.config.load import LoadedConfig, load_with_sources
from slipstream.config.schema import Config
from slipstream.config.speculation import SpeculationConfig
from slipstream.errors import ConfigError

_DRAFTERS = "speculation.drafters"

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file: YAML, TOML or JSON."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, stronger than file and environment; lists are JSON. Repeatable.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Folder, .gguf file, hub id or another source (model.source).",
    ),
]
SpeculationOption = Annotated[
    bool | None,
    typer.Option(
        "--speculation/--no-speculation",
        help="Draft or not: --no-speculation empties the list of drafters, --speculation fills an "
        "empty one with the usual ones.",
        show_default=False,
    ),
]


def load(
    file: Path | None,
    settings: Sequence[str] | None,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """The effective configuration of a command; see `load_traced`."""
    return load_traced(file, settings, flags).config


def load_traced(
    file: Path | None,
    settings: Sequence[str] | None,
    flags: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """Reads file, process environment, `--set` and named flags.

    Args:
        settings: Texts `section.key=value`, later ones stronger.
        flags: Dotted key -> value of a command's named flags; None was not given. They are
            stronger than `settings`.

    Raises:
        ConfigError: Lists everything that is wrong.
    """
    overrides: dict[str, object] = {}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f'--set takes SECTION.KEY=VALUE, got "{text}"',
                hint="for example --set speculation.max_draft_len=4",
            )
        overrides[key.strip()] = value
    for key, flag in (flags or {}).items():
        if flag is not None:
            overrides[key] = flag
    return load_with_sources(file=file, env=os.environ, overrides=overrides)


def load_drafting(
    file: Path | None,
    settings: Sequence[str] | None,
    flags: Mapping[str, object],
    speculation: bool | None,
) -> Config:
    """As `load`, with `SpeculationOption` on top."""
    if speculation is False:
        return load(file, settings, {**flags, _DRAFTERS: ()})
    effective = load(file, settings, flags)
    if not speculation or effective.speculation.drafters:
        return effective
    usual = [item.model_dump() for item in SpeculationConfig().drafters]
    return load(file, settings, {**flags, _DRAFTERS: usual})
