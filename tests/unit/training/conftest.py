"""What tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.training.session import TrainingTarget
from tests.support.training import tiny_target


@pytest.fixture
def target(tmp_path: Path) -> TrainingTarget:
    return tiny_target(tmp_path)
