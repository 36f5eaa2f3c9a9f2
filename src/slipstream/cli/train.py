"""`slipstream train`: from prompts to a drafter of one's own."""

from __future__ import annotations

import typer

from slipstream.cli.train_cache import cache
from slipstream.cli.train_calibrate import calibrate
from slipstream.cli.train_data import data
from slipstream.cli.train_eval import evaluate
from slipstream.cli.train_export import export
from slipstream.cli.train_fit import fit

app = typer.Typer(help="Train a drafter for a model of yours.", no_args_is_help=True)
app.command()(data)
app.command()(cache)
app.command()(fit)
app.command()(calibrate)
app.command("eval")(evaluate)
app.command()(export)
