"""Temperatures of a confidence head: read, missing, damaged, or of another drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftHparams, DSparkHparams
from slipstream.models.drafts.load import load_draft
from slipstream.weights.open import open_checkpoint
from tests.support.drafts import CONFIGS, target_hparams, tiny_ends, tiny_tensors_of, write_draft

TEMPERATURES = [0.5, 1.0, 2.0, 4.0]


def load(path: Path, content: object, config: dict[str, Any] = CONFIGS["dspark"]) -> DraftHparams:
    """A drafter with such a calibration beside it; text is written as it is, None is no file."""
    folder = write_draft(path / "draft", config, tiny_tensors_of(config))
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "calibration.json").write_text(text)
    net = load_draft(open_checkpoint(folder), target_hparams(), tiny_ends(), torch.float32)
    hparams = net.hparams
    assert isinstance(hparams, DraftHparams)
    return hparams


def test_temperatures_are_read_whatever_else_is_told(tmp_path: Path) -> None:
    hparams = load(tmp_path, {"temperatures": TEMPERATURES, "num_blocks": 7})
    assert isinstance(hparams, DSparkHparams)
    assert hparams.confidence_temperatures == tuple(TEMPERATURES)


def test_without_a_file_confidences_stay_as_they_are(tmp_path: Path) -> None:
    hparams = load(tmp_path, None)
    assert isinstance(hparams, DSparkHparams)
    assert hparams.confidence_temperatures == ()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1.0, 1.0, 1.0, 1.0]",
        {},
        {"temperatures": []},
        {"temperatures": "1.0"},
        {"temperatures": [1.0, 1.0, "1.0", 1.0]},
        {"temperatures": [1.0, 1.0, True, 1.0]},
        {"temperatures": [1.0, 0.0, 1.0, 1.0]},
        '{"temperatures": [1.0, NaN, 1.0, 1.0]}',
        '{"temperatures": [1.0, Infinity, 1.0, 1.0]}',
        {"temperatures": [1.0, 1.0, 1.0]},
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: object) -> None:
    with pytest.raises(WeightsError, match=r"calibration\.json") as caught:
        load(tmp_path, content)
    assert "slipstream train calibrate" in str(caught.value.hint)


def test_a_drafter_without_a_confidence_head_has_nothing_to_calibrate(tmp_path: Path) -> None:
    config = CONFIGS["dspark"] | {"enable_confidence_head": False}
    with pytest.raises(WeightsError, match="does not have"):
        load(tmp_path, {"temperatures": TEMPERATURES}, config)
    with pytest.raises(WeightsError, match="does not have"):
        load(tmp_path / "other", {"temperatures": TEMPERATURES}, CONFIGS["dflash"])
