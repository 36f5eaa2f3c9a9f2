"""Tiny target models against the arrays that the reference implementation computed in float32."""

from __future__ import annotations

import pytest

from slipstream.audit.fixture import Fixture
from slipstream.audit.golden import find_fixtures, judge
from tests.support.paths import shared_dir

FAMILIES = {
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "qwen3_moe",
    "deepseek_v3",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
}
MODELS = (
    "llama_tied",
    "llama3_rope",
    "mistral_swa",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "qwen3_moe",
    "deepseek_v3",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
)


@pytest.mark.parametrize("model", MODELS)
def test_logits_hidden_states_steps_and_greedy_tokens_are_the_references(model: str) -> None:
    folder = shared_dir("golden", "open", "targets", model)
    (fixture,) = find_fixtures(folder)

    result = judge(fixture, folder)

    assert [check for check in result.checks if not check.is_passed] == []
    assert result.verdict == "pass", result.reason
    inputs = {check.name.partition(".")[0] for check in result.checks}
    assert inputs == {"a", "b"}
    assert len(result.checks) == 12


def test_every_family_that_we_serve_has_a_fixture() -> None:
    fixtures = find_fixtures(shared_dir("golden", "open", "targets"))
    assert {fixture.family for fixture in fixtures if _is_supported(fixture)} == FAMILIES
    assert len(fixtures) == len(MODELS)


def _is_supported(fixture: Fixture) -> bool:
    return fixture.run is not None
