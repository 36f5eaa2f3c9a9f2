"""One tiny target with drafters that know it by heart, for all tests of the doctor."""

from __future__ import annotations

import pytest

from slipstream.models.drafts.hparams import DraftFamily
from slipstream.training.nets import TrainedNet
from tests.support.trained_drafts import TaughtTarget, teach_net, teach_target

TRAINED: tuple[DraftFamily, ...] = ("dspark", "eagle3")


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> TaughtTarget:
    return teach_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def nets(
    taught: TaughtTarget, tmp_path_factory: pytest.TempPathFactory
) -> dict[DraftFamily, TrainedNet]:
    path = tmp_path_factory.mktemp("nets")
    return {
        family: teach_net(family, taught, path, is_reduced=family == "dspark") for family in TRAINED
    }
