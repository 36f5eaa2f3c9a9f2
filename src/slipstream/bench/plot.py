"""The report as a picture: ratio by category, acceptance by depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipstream.bench.report import Report
from slipstream.bench.statistics import CONFIDENCE
from slipstream.bench.summary import Summary

_INCHES_PER_BAR = 0.32
_COLOURS = {"all": "#1b4965", "sampling": "#62b6cb", "category": "#bee9e8"}


def write_plot(report: Report, path: Path) -> None:
    """Write a PNG."""
    bars = [("all", report.total)]
    by_sampling = list(report.by_sampling.values()) if len(report.by_sampling) > 1 else []
    bars += [("sampling", item) for item in by_sampling]
    bars += [("category", item) for item in report.by_category.values()]
    figure = Figure(figsize=(11.0, 2.4 + _INCHES_PER_BAR * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(left, bars)
    _draw_acceptance(right, [report.total, *by_sampling])
    provenance = report.provenance
    figure.suptitle(
        f"{report.facts.get('model', '')}, {provenance.machine.cpu}, "
        f"{provenance.machine.num_cores} cores, {provenance.started_at[:10]}",
        fontsize=9,
    )
    figure.savefig(path, format="png", dpi=130)


def _draw_ratios(axes: Any, bars: list[tuple[str, Summary]]) -> None:  # Any: untyped library
    axes.set_title("tokens per second, on / off", fontsize=10)
    labels = []
    for row, (kind, part) in enumerate(bars):
        labels.append(f"{part.label} ({part.num_prompts})")
        ratio = part.ratios.tokens_per_s
        if ratio is None:
            continue
        axes.barh(row, ratio.value, color=_COLOURS[kind], edgecolor="#333333", linewidth=0.5)
        if ratio.low is not None and ratio.high is not None:
            axes.plot([ratio.low, ratio.high], [row, row], color="#333333", linewidth=1.5)
        axes.annotate(
            f"{ratio.value:.2f}",
            (max(ratio.value, ratio.high or 0.0), row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )
    axes.axvline(1.0, color="#333333", linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"ratio of totals; lines: {CONFIDENCE:.0%} bootstrap over prompts", fontsize=8)


def _draw_acceptance(axes: Any, parts: list[Summary]) -> None:  # Any: untyped library
    axes.set_title("acceptance by depth", fontsize=10)
    for part in parts:
        shares = part.drafts.acceptance_at
        if shares:
            depths = range(1, len(shares) + 1)
            axes.plot(depths, shares, marker="o", markersize=3, label=part.label)
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel("depth of the draft token", fontsize=8)
    axes.set_ylabel("accepted / drafts that reached the depth", fontsize=8)
    if axes.lines:
        axes.legend(fontsize=8)
