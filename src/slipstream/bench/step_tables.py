"""A run of `slipstream bench step` at the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group
from rich.table import Table

from slipstream.bench.step_costs import PARTS, StepCosts
from slipstream.bench.step_run import StepRun
from slipstream.bench.tables import busy_warning, make_table, percent

_MB = 1e6


def print_run(run: StepRun, console: Console) -> None:
    """Two tables and what is worth a warning; fits 80 columns."""
    console.print(Group(_times(run), _shares(run)))
    for line in _notes(run):
        console.print(f"[yellow]note:[/yellow] {line}", highlight=False)


def _times(run: StepRun) -> Table:
    parts = [part for part in PARTS if any(part in costs.parts_s for costs in run.costs)]
    names = ["other" if part == "other kernels" else part for part in parts]
    table = make_table(
        "where a step's time goes, in milliseconds",
        ("step", *names),
        "rows of a pass and what they are; means over the middle half of the steps. other: "
        "embedding, norms, rotary, gate. host: scheduling, drafting, layout, commit, text.",
    )
    for costs in run.costs:
        cells = [_ms(costs.parts_s.get(part)) for part in parts]
        table.add_row(label(costs), _ms(costs.typical_s), *cells)
    return table


def _shares(run: StepRun) -> Table:
    rate = "not measured" if run.bytes_per_s is None else f"{run.bytes_per_s / 1e9:.1f} GB/s"
    table = make_table(
        f"against the bandwidth ({rate})",
        ("over first", "weights", "KV", "products", "step", "outside"),
        "over first: time over the first line's. weights, KV: MB read. products, step: time that "
        "reading alone takes over time taken. outside: share of the step that is no product.",
    )
    first_s = run.costs[0].typical_s
    for costs in run.costs:
        products_s = costs.products_s
        table.add_row(
            label(costs),
            f"{costs.typical_s / first_s:.2f}",
            f"{costs.read.weights / _MB:.1f}",
            f"{costs.read.kv / _MB:.1f}",
            percent(costs.matrices_share),
            percent(costs.step_share),
            percent(None if products_s is None else 1.0 - products_s / costs.typical_s),
        )
    return table


def label(costs: StepCosts) -> str:
    """Rows and shape of one case."""
    case = costs.case
    return "1 row" if case.num_rows == 1 else f"{case.num_rows} {case.shape}"


def _notes(run: StepRun) -> Iterable[str]:
    if any("pass" in costs.parts_s for costs in run.costs):
        yield (
            "the model runs in torch, where a pass cannot be taken apart: only its total is known "
            "(slipstream bench kernels measures torch's products)"
        )
    if run.bytes_per_s is None:
        yield "the bandwidth was not measured, because the native kernels are not there"
    yield from busy_warning(run.provenance.machine)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
