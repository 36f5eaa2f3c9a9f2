"""Targets with recurrent layers in service: long conversations, metrics, little memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.sampling.params import SamplingParams
from tests.laws.test_lossless_families import (
    RECURRENT,
    TIGHT,
    DraftingLLM,
    KnowingDrafter,
    cases,
    check_conversation,
    check_nothing_is_left,
    plain_answers,
    run_all,
    state_bytes,
)
from tests.support.tiny_families import write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TURNS = 30


@pytest.mark.parametrize("family", [*RECURRENT, "deepseek_v3"])
def test_thirty_turns_whose_answers_come_back_as_prompts_are_those_of_plain_decoding(
    tmp_path: Path, family: str
) -> None:
    path = write_tiny_family(tmp_path, family)
    turns = [
        SamplingParams(temperature=turn % 2, seed=turn, max_tokens=8, ignore_eos=True)
        for turn in range(NUM_TURNS)
    ]
    check_conversation(path, "8MiB", 5, turns)


def test_metrics_tell_of_states_snapshots_and_replayed_rows(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    answers = plain_answers(path, "float32")
    texts = [[*case.prompt, *answer] for case, answer in zip(cases(), answers, strict=True)]
    with DraftingLLM(path, TIGHT, [KnowingDrafter(texts)]) as llm:
        run_all(llm)
        run_all(llm)
        states = llm.engine.kv.states
        assert states is not None
        metrics = str(llm.engine.call("metrics"))

    for event, number in states.snapshot_counts().items():
        assert f'slipstream_recurrent_snapshots_total{{event="{event}"}} {float(number)}' in metrics
    assert states.num_found > 0
    assert states.row_counts["drafted"] > states.row_counts["replayed"] > 0
    assert f'rows_total{{kind="replayed"}} {float(states.row_counts["replayed"])}' in metrics
    assert f'recurrent_states{{state="leased"}} {0.0}' in metrics


def test_one_state_serves_one_request_at_a_time_and_says_that_no_prefix_is_reused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_family(tmp_path, "qwen3_5")
    settings = TIGHT | {"memory.state_bytes": state_bytes(path, 2)}

    with DraftingLLM(path, settings, []) as llm:
        assert run_all(llm) == plain_answers(path, "float32")
        assert llm.engine.kv.usage().num_hit_tokens == 0
        check_nothing_is_left(llm)

    assert "needs the only recurrent state" in caplog.text
