"""Which steps are measured, and what the engine is given for it."""

from __future__ import annotations

import pytest

from slipstream.bench.filler import FillerDrafter
from slipstream.bench.step_plan import (
    StepCase,
    StepRunPlan,
    parse_cases,
    parse_rows,
    step_config,
)
from slipstream.config.schema import Config
from slipstream.errors import ConfigError
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import initial_state
from slipstream.speculation.drafter import DraftContext


def plan_of(rows: str, shape: str = "auto") -> StepRunPlan:
    return StepRunPlan(parse_cases(rows, shape), context_len=40, num_steps=2, num_rounds=1)


def test_rows_are_a_draft_as_long_as_one_may_be_and_then_a_chunk() -> None:
    assert parse_cases("1,129,130", "auto") == (
        StepCase(1, "draft"),
        StepCase(129, "draft"),
        StepCase(130, "prompt"),
    )


def test_every_request_has_one_row_where_requests_are_asked_for() -> None:
    (case,) = parse_cases("64", "requests")
    assert case.num_requests == 64


def test_row_counts_keep_their_order_and_occur_once() -> None:
    assert parse_rows("8, 1,8") == (8, 1)


@pytest.mark.parametrize("rows", ["", "0", "-1", "a", "1,,2", "70000"])
def test_what_is_no_row_count_is_refused(rows: str) -> None:
    with pytest.raises(ConfigError, match="--rows takes whole numbers"):
        parse_rows(rows)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="--shape must be auto, draft, requests, prompt"):
        parse_cases("1", "round")


def test_a_draft_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 129 rows, got 200"):
        parse_cases("200", "draft")


def test_the_engine_is_given_room_and_no_drafter_of_the_configuration() -> None:
    config = step_config(Config(), plan_of("1000", "requests"))
    assert config.speculation.drafters == ()
    assert config.scheduler.max_step_tokens == 1000
    assert config.scheduler.max_num_requests == 1000
    assert config.scheduler.queue_timeout_s is None


def test_a_chunk_needs_the_prefix_cache() -> None:
    config = Config()
    memory = config.memory.model_copy(update={"prefix_cache": False})
    config = config.model_copy(update={"memory": memory})
    with pytest.raises(ConfigError, match=r"memory\.prefix_cache"):
        step_config(config, plan_of("512"))
    assert step_config(config, plan_of("8")).memory == memory


@pytest.mark.parametrize(("max_len", "max_nodes"), [(1, 1), (32, 7), (32, 63), (3, 8)])
def test_the_filler_uses_both_bounds(max_len: int, max_nodes: int) -> None:
    params = SamplingParams()
    context = DraftContext(
        request_id="a",
        tokens=[5, 6],
        prompt_len=2,
        params=params,
        state=initial_state(params, (5, 6)),
        seed=0,
        salt="",
        max_draft_len=max_len,
        max_draft_nodes=max_nodes,
    )
    (tree,) = FillerDrafter().propose([context])
    assert len(tree) == max_nodes
    assert tree.depth == min(max_len, max_nodes)
