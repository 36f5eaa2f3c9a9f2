"""A run of `slipstream bench step` as a stacked bar for each case."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipstream.bench.step_costs import PARTS
from slipstream.bench.step_run import StepRun
from slipstream.bench.step_tables import label

_COLOURS = {
    "matrices": "#1b4965",
    "attention": "#62b6cb",
    "other kernels": "#bee9e8",
    "head": "#5fa8d3",
    "pass": "#1b4965",
    "sampling": "#f4a259",
    "host": "#bc4b51",
}


def write_plot(run: StepRun, path: Path) -> None:
    """Write a PNG."""
    parts = [part for part in PARTS if any(part in costs.parts_s for costs in run.costs)]
    figure = Figure(figsize=(9.0, 2.0 + 0.45 * len(run.costs)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = [f"{label(costs)}\n{costs.typical_s * 1000:.2f} ms" for costs in run.costs]
    starts = [0.0] * len(run.costs)
    for part in parts:
        shares = [costs.parts_s.get(part, 0.0) / costs.typical_s for costs in run.costs]
        axes.barh(labels, shares, left=starts, color=_COLOURS[part], label=part)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of the step", fontsize=8)
    axes.tick_params(labelsize=8)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
    machine = run.provenance.machine
    figure.suptitle(
        f"{run.facts.get('model', '')}, context {run.plan.context_len}, {machine.cpu}, "
        f"{machine.num_cores} cores, {run.provenance.started_at[:10]}",
        fontsize=9,
    )
    figure.savefig(path, format="png", dpi=130)
