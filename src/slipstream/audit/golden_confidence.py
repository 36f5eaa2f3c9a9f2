"""Recorded calibrations, measures of confidence and prefix schedules against ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.audit.fixture import Check
from slipstream.audit.recorded import Recorded, close, compare, equal
from slipstream.speculation.calibration import confidence_quality, fit_sequential_temperatures
from slipstream.speculation.prefix_schedule import best_row_count, schedule_prefixes, spend_rows

BOUND = 1e-9
THROUGHPUT_BOUND = 1e-6  # relative; the asynchronous variant was recorded in float32

Record = Mapping[str, Any]  # Any: a JSON object


def checks_of_arrays(
    names: Mapping[str, object] | frozenset[str],
) -> Callable[[Path], list[Check]] | None:
    """What recomputes a file with arrays of these names; None where it holds something else."""
    if {"prefix_mask", "grid", "temperatures"} <= set(names):
        return _temperature_checks
    if {"prefix_probs", "prefix_accepted", "lengths"} <= set(names):
        return _quality_checks
    return None


def is_schedule(records: Sequence[Any]) -> bool:  # Any: JSON values
    """Whether the records of a JSON file are schedules."""
    return all(
        isinstance(record, dict) and {"confidences", "sps", "algorithm1"} <= record.keys()
        for record in records
    )


def schedule_checks(records: Sequence[Record]) -> list[Check]:
    """Lengths exactly, throughputs up to rounding."""
    checks: list[Check] = []
    for index, record in enumerate(records):
        steps_per_s = {int(rows): float(value) for rows, value in record["sps"].items()}
        confidences, expected = record["confidences"], record["algorithm1"]
        schedule = schedule_prefixes(confidences, steps_per_s)
        rows, throughput = best_row_count(confidences, steps_per_s)
        name = f"record {index} "
        checks += [
            _same(f"{name}lengths", schedule.lengths, expected["lengths"]),
            _same(f"{name}admitted", schedule.admitted, expected["admitted"]),
            _same(f"{name}best rows", [rows], [expected["unrestricted_best_B"]]),
            _close(f"{name}survival", schedule.survival, expected["survival"]),
            _near(f"{name}throughputs", schedule.tried, expected["theta_path"]),
            _near(f"{name}throughput", [schedule.throughput], [expected["theta"]]),
            _near(f"{name}best", [throughput], [expected["unrestricted_best_theta"]]),
        ]
        if "async_variant" in record:
            checks += _async_checks(name, record, steps_per_s)
    return checks


def _temperature_checks(path: Path) -> list[Check]:
    recorded = Recorded.read(path)
    fitted = fit_sequential_temperatures(
        _floats(recorded["logits"]), _floats(recorded["prefix_mask"]), _floats(recorded["grid"])
    )
    ours = {
        "temperatures": torch.from_numpy(fitted.temperatures),
        "ece_before": torch.from_numpy(fitted.ece_before),
        "ece_after": torch.from_numpy(fitted.ece_after),
        "calibrated_survival": torch.from_numpy(fitted.survival),
    }
    return compare(ours, recorded, {"": BOUND})


def _quality_checks(path: Path) -> list[Check]:
    recorded = Recorded.read(path)
    quality = confidence_quality(
        _floats(recorded["prefix_probs"]),
        _floats(recorded["prefix_accepted"]),
        recorded["lengths"].numpy(),
    )
    ours = {
        "total_weight": quality.count,
        "ece": quality.ece,
        "auc": quality.auc,
        "brier": quality.brier,
        "pred_mean": quality.predicted,
        "target_mean": quality.accepted,
    }
    arrays = {name: torch.from_numpy(values) for name, values in ours.items()}
    return compare(arrays, recorded, {"": BOUND})


def _async_checks(name: str, record: Record, steps_per_s: Mapping[int, float]) -> list[Check]:
    expected, confidences = record["async_variant"], record["confidences"]
    rows, throughput = best_row_count(expected["older_confidences"], steps_per_s)
    budget = rows - len(confidences)
    lens = [drafts + 1 for drafts in spend_rows(confidences, budget)]
    return [
        _same(f"{name}budget", [budget], [expected["budget"]]),
        _same(f"{name}rows of each request", lens, expected["verify_lens"]),
        _near(f"{name}predicted", [throughput], [expected["predicted_theta"]]),
    ]


def _same(name: str, actual: Sequence[Any], expected: Sequence[Any]) -> Check:  # Any: nested ints
    return equal(name, torch.tensor(actual), torch.tensor(expected))


def _close(name: str, actual: Sequence[Any], expected: Sequence[Any]) -> Check:  # Any: floats
    """Absolute difference."""
    ours = torch.tensor(actual, dtype=torch.float64)
    return close(name, ours, torch.tensor(expected, dtype=torch.float64), BOUND)


def _near(name: str, actual: Sequence[Any], expected: Sequence[Any]) -> Check:  # Any: nested floats
    """Relative difference."""
    scale = torch.tensor(expected, dtype=torch.float64).abs().clamp(min=1e-300)
    ours = torch.tensor(actual, dtype=torch.float64)
    return close(name, ours / scale, torch.ones_like(scale), THROUGHPUT_BOUND)


def _floats(array: Tensor) -> np.typing.NDArray[np.float64]:
    floats: np.typing.NDArray[np.float64] = array.double().numpy()
    return floats
