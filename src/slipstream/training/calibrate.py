"""Sequential temperature scaling of a confidence head.

Depth by depth, one temperature is chosen such that the product of confidences up to that depth says
how often drafts are accepted up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.training.objective import RowResults

_NUM_CANDIDATES = 41
_LOWEST, _HIGHEST = 0.1, 10.0
_NUM_BINS = 15


@dataclass(frozen=True, slots=True)
class Calibration:
    """Attributes:
    temperatures: By depth, what the confidence's logit is divided by.
    errors_before, errors_after: By depth, expected calibration error of the product up to there.
    num_blocks: Drafts that it rests on.
    """

    temperatures: tuple[float, ...]
    errors_before: tuple[float, ...]
    errors_after: tuple[float, ...]
    num_blocks: int


def calibrate(results: Sequence[RowResults]) -> Calibration:
    """Choose temperatures.

    Raises:
        WeightsError: The net has no confidence head, or there is nothing to measure.

    Source: arXiv:2607.05147, section on calibration; the search is SGLang's: 41 temperatures from
    0.1 to 10 and 15 bins.
    """
    if not results:
        raise WeightsError(
            "no answer of the data is held out, so there is nothing to calibrate on",
            hint="make data with a --validation-share above 0",
        )
    if any(item.confidence is None for item in results):
        raise WeightsError(
            "the drafter has no confidence head, so there is nothing to calibrate",
            hint="dspark has one",
        )
    whole = [item.is_valid.all(-1) for item in results]
    logits = torch.cat(
        [
            item.confidence[rows].double()
            for item, rows in zip(results, whole, strict=True)
            if item.confidence is not None
        ]
    )
    # What happens is drawn with that probability; its expectation says the same with less noise.
    accepted = torch.cat(
        [
            item.acceptance[rows].double().cumprod(-1)
            for item, rows in zip(results, whole, strict=True)
        ]
    )
    if len(logits) == 0:
        raise WeightsError("no held-out answer is long enough to calibrate on")
    candidates = torch.logspace(
        torch.log10(torch.tensor(_LOWEST)).item(),
        torch.log10(torch.tensor(_HIGHEST)).item(),
        _NUM_CANDIDATES,
        dtype=torch.float64,
    ).tolist()
    before = torch.ones(len(logits), dtype=torch.float64)
    raw = torch.sigmoid(logits).cumprod(-1)
    temperatures, errors_before, errors_after = [], [], []
    for depth in range(logits.shape[1]):
        errors = [
            calibration_error(before * torch.sigmoid(logits[:, depth] / t), accepted[:, depth])
            for t in candidates
        ]
        best = min(range(len(candidates)), key=errors.__getitem__)
        before = before * torch.sigmoid(logits[:, depth] / candidates[best])
        temperatures.append(candidates[best])
        errors_before.append(calibration_error(raw[:, depth], accepted[:, depth]))
        errors_after.append(errors[best])
    return Calibration(tuple(temperatures), tuple(errors_before), tuple(errors_after), len(logits))


def calibration_error(predicted: Tensor, happened: Tensor) -> float:
    """Expected calibration error, [blocks] each: mean |predicted - happened| over equal bins."""
    bins = (predicted * _NUM_BINS).long().clamp(0, _NUM_BINS - 1)
    zeros = torch.zeros(_NUM_BINS, dtype=torch.float64)
    gaps = zeros.index_add(0, bins, predicted - happened)
    return float(gaps.abs().sum() / len(predicted))
