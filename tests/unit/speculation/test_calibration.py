"""Calibration makes a drafter's confidence mean what it says."""

from __future__ import annotations

import numpy as np

from slipstream.speculation.calibration import (
    area_under_curve,
    calibration_error,
    confidence_quality,
    fit_sequential_temperatures,
)

GRID = np.logspace(-1, 1, 41)


def test_overconfident_logits_are_cooled_down() -> None:
    rng = np.random.default_rng(0)
    true_logits = rng.normal(0.5, 1.0, (4000, 3))
    accepted = rng.random((4000, 3)) < 1.0 / (1.0 + np.exp(-true_logits))
    prefix = np.cumprod(accepted, 1).astype(np.float64)

    fitted = fit_sequential_temperatures(3.0 * true_logits, prefix, GRID)

    assert (abs(fitted.temperatures - 3.0) < 1.0).all()
    assert (fitted.ece_after < 0.5 * fitted.ece_before).all()
    assert fitted.survival.shape == (4000, 3)


def test_calibrated_probabilities_have_no_error() -> None:
    probs = np.full(10, 0.3)
    truth = np.array([1.0] * 3 + [0.0] * 7)
    assert calibration_error(probs, truth, 15) < 1e-12


def test_separable_samples_have_the_whole_area() -> None:
    truth = np.array([0.0, 0.0, 1.0, 1.0])
    assert area_under_curve(np.array([0.1, 0.2, 0.8, 0.9]), truth) == 1.0
    assert area_under_curve(np.array([0.5, 0.5, 0.5, 0.5]), truth) == 0.5
    assert np.isnan(area_under_curve(np.array([0.5]), np.array([1.0])))


def test_positions_that_were_not_drafted_do_not_count() -> None:
    quality = confidence_quality(
        np.array([[0.5, 0.9], [0.5, -1.0]]),
        np.array([[1.0, 1.0], [0.0, -1.0]]),
        np.array([2, 1]),
    )
    assert quality.count.tolist() == [2.0, 1.0]
    assert quality.accepted.tolist() == [0.5, 1.0]
    assert abs(quality.brier[1] - 0.01) < 1e-12
