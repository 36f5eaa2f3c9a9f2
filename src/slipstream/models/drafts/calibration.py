"""Temperatures of a confidence head, which lie beside the net that they were fitted for.

`calibration.json` is what `slipstream train calibrate` writes, and what SGLang's tool writes: an
object with `temperatures`, by draft position the divisor of the confidence's logit; other fields
tell how they were found. Source: DSpark (arXiv:2607.05147), sequential temperature scaling.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftHparams, DSparkHparams

CALIBRATION_FILE = "calibration.json"
_HINT = "fit it again with `slipstream train calibrate`, or remove it to use raw confidences"


def calibrated(hparams: DraftHparams, checkpoint: Path) -> DraftHparams:
    """The same with the temperatures that lie beside the checkpoint, if there are any.

    Args:
        checkpoint: The file or folder that the net is read from.
    Raises:
        WeightsError: The file is damaged, or is not about this net.
    """
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / CALIBRATION_FILE
    if not path.exists():
        return hparams
    if not isinstance(hparams, DSparkHparams) or not hparams.has_confidence:
        raise WeightsError(
            f"{path} calibrates a confidence head, which the drafter beside it does not have",
            hint="remove it, or put it beside the drafter that it was fitted for",
        )
    temperatures = _read(path)
    if len(temperatures) != hparams.max_draft_len:
        raise WeightsError(
            f"{path} has {len(temperatures)} temperatures; the drafter beside it drafts "
            f"{hparams.max_draft_len} tokens and needs one for each",
            hint=_HINT,
        )
    return replace(hparams, confidence_temperatures=temperatures)


def _read(path: Path) -> tuple[float, ...]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {error}", hint=_HINT) from error
    values = content.get("temperatures") if isinstance(content, dict) else None
    if not isinstance(values, list) or not values or not all(map(_is_temperature, values)):
        raise WeightsError(
            f"{path} must hold an object whose temperatures are a list of numbers above 0, got "
            f"{json.dumps(values)[:80]}",
            hint=_HINT,
        )
    return tuple(map(float, values))


def _is_temperature(value: Any) -> bool:  # Any: JSON
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0.0
