"""What a run needs to begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.training.begin import begin_new
from slipstream.training.session import TrainingTarget, open_source
from tests.support.training import counting_answers, tiny_settings, write_dataset


@pytest.mark.parametrize(
    ("share", "response_len", "message"),
    [
        (1.0, 30, "of 4, 4 are held out, and 0 have less than 3 tokens"),
        (0.0, 0, "of 4, 0 are held out, and 4 have less than 3 tokens"),
        (0.0, 2, "of 4, 0 are held out, and 4 have less than 3 tokens"),
    ],
)
def test_a_run_without_an_answer_to_train_on_is_refused(
    share: float, response_len: int, message: str, target: TrainingTarget, tmp_path: Path
) -> None:
    answers = [
        answer.model_copy(update={"response_ids": answer.response_ids[:response_len]})
        for answer in counting_answers(4)
    ]
    dataset = write_dataset(tmp_path / "data", target, answers, share)
    settings = tiny_settings("dspark")
    source = open_source(target, dataset, settings.net.tap_layer_ids, None)
    with pytest.raises(ConfigError, match=message) as no:
        begin_new(settings, target, dataset, source)
    assert "slipstream train data" in str(no.value.hint)
