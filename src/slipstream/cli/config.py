"""`slipstream config`: what is set and by whom, whether it is right, and what can be set."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from slipstream.cli.options import ConfigOption, SetOption, load, load_traced

app = typer.Typer(
    name="config", help="Show, check and describe the configuration.", no_args_is_help=True
)


@app.command()
def show(
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: path -> value and source.")
    ] = False,
) -> None:
    """Print every setting as it will be used, and where its value comes from."""
    effective = load_traced(config, settings).settings
    if as_json:
        table = {
            setting.path: {
                "value": setting.value,
                "source": setting.origin.source,
                "origin": setting.origin.name,
            }
            for setting in effective
        }
        typer.echo(json.dumps(table, indent=2, ensure_ascii=False))
        return
    rows = [(item.path, json.dumps(item.value), item.origin) for item in effective]
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(32, max(len(value) for _, value, _ in rows))
    for path, value, origin in rows:
        named = origin.source in ("env", "file")
        source = f"{origin.source} {origin.name}" if named else origin.source
        typer.echo(f"{path:<{path_width}}  {value:<{value_width}}  {source}")


@app.command()
def check(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Check all sources; print every problem and exit with status 2 if there is one."""
    load(config, settings)
    typer.echo("The configuration is valid.")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from slipstream.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))
