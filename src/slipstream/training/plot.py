"""The course of a training run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipstream.training.run_folder import Score
from slipstream.weights.disk import disk_errors


def write_plot(history: Sequence[Score], title: str, path: Path) -> None:
    """Write a PNG: loss, and mean acceptance length, by step.

    Raises:
        CapacityError: The disk is full.
    """
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = [score.step for score in history]
    _line(left, steps, [score.loss for score in history], "training")
    _line(left, steps, [score.held_out_loss for score in history], "held out")
    left.set_ylabel("loss")
    _line(right, steps, [score.sampled_length for score in history], "training, T = 1")
    _line(right, steps, [score.held_out_sampled for score in history], "held out, T = 1")
    _line(right, steps, [score.held_out_greedy for score in history], "held out, along answers")
    right.set_ylabel("mean acceptance length, teacher-forced")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    with disk_errors(path.parent, "free some space, then run the same command again"):
        figure.savefig(path, format="png", dpi=120)


def _line(
    axes: Any,  # Any: untyped library
    steps: Sequence[int],
    values: Sequence[float | None],
    label: str,
) -> None:
    points = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    if points:
        marker = "o" if label.startswith("held") else None
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, label=label)
