"""Fixtures are found by what they hold, and whatever is wrong with one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from slipstream.audit.fixture import Result
from slipstream.audit.golden import find_fixtures, judge
from slipstream.audit.golden_laws import BOUND, DRAWN_BOUND, NUM_DRAWS
from slipstream.errors import ConfigError
from tests.support.golden_files import (
    RECORDED,
    change_arrays,
    write_json,
    write_target_fixture,
)
from tests.support.paths import REPOSITORY

NGRAM_RECORD = {
    "tokens": [1, 2, 3, 9, 1, 2, 3],
    "vllm": [{"min_n": 2, "max_n": 3, "k": 2, "max_model_len": 100, "draft": [9, 1]}],
    "hf": [
        {
            "max_matching_ngram_size": 2,
            "num_output_tokens": 3,
            "eos_token_id": None,
            "max_length": 100,
            "draft": [9, 1, 2],
        }
    ],
}


def results(root: Path) -> list[Result]:
    return [judge(fixture, root) for fixture in find_fixtures(root)]


def the_result(root: Path) -> Result:
    (result,) = results(root)
    return result


def failures(result: Result) -> list[str]:
    return [check.name for check in result.checks if not check.is_passed]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_checkpoint_that_computes_what_was_recorded_passes(tmp_path: Path, family: str) -> None:
    write_target_fixture(tmp_path / "somewhere" / "deep", family)
    result = the_result(tmp_path)
    assert (result.verdict, result.family) == ("pass", family)
    assert result.fixture == "somewhere/deep"
    assert result.error is not None
    assert result.error < 1e-4
    assert len(result.checks) == 12


def test_the_audited_folder_may_be_the_fixture_itself(tmp_path: Path) -> None:
    write_target_fixture(tmp_path / "model")
    assert the_result(tmp_path / "model").fixture == "model"


@pytest.mark.parametrize(
    ("array", "check"),
    [
        ("x.logits", ["x.logits", "x.logits in chunks"]),
        ("y.hidden_states", ["y.hidden states"]),
        ("y.last_layer_out_prenorm", ["y.last layer's output"]),
        ("x.step_logits", ["x.logits step by step"]),
    ],
)
def test_one_wrong_number_fails_and_its_array_is_named(
    tmp_path: Path, array: str, check: list[str]
) -> None:
    write_target_fixture(tmp_path)

    def disturb(arrays: dict[str, Tensor]) -> None:
        arrays[array].view(-1)[7] += 3e-4

    change_arrays(tmp_path, disturb)
    result = the_result(tmp_path)
    assert result.verdict == "fail"
    assert failures(result) == check


def test_a_greedy_token_that_differs_fails(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)

    def change_last(arrays: dict[str, Tensor]) -> None:
        arrays["x.greedy"][-1] = (arrays["x.greedy"][-1] + 1) % 300

    change_arrays(tmp_path, change_last)
    result = the_result(tmp_path)
    assert failures(result) == ["x.greedy tokens"]


def test_something_that_is_no_number_fails(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)

    def spoil(arrays: dict[str, Tensor]) -> None:
        arrays["x.logits"][0, 0] = float("nan")

    change_arrays(tmp_path, spoil)
    assert the_result(tmp_path).verdict == "fail"


def test_arrays_of_another_shape_fail(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)

    def cut(arrays: dict[str, Tensor]) -> None:
        arrays["x.logits"] = arrays["x.logits"][:, :-1].contiguous()

    change_arrays(tmp_path, cut)
    assert failures(the_result(tmp_path)) == ["x.logits", "x.logits in chunks"]


def test_arrays_that_were_not_recorded_are_not_compared(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)

    def drop(arrays: dict[str, Tensor]) -> None:
        for name in ("hidden_states", "last_layer_out_prenorm", "greedy", "step_logits"):
            del arrays[f"x.{name}"]

    change_arrays(tmp_path, drop)
    result = the_result(tmp_path)
    assert result.verdict == "pass"
    assert len(result.checks) == 8


def test_token_ids_outside_the_vocabulary_are_the_fixtures_fault(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)

    def change(arrays: dict[str, Tensor]) -> None:
        arrays["x.input_ids"][0] = 10_000

    change_arrays(tmp_path, change)
    result = the_result(tmp_path)
    assert result.verdict == "fail"
    assert "x.input_ids" in result.reason


def test_a_supported_checkpoint_that_cannot_be_loaded_fails_with_the_reason(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    result = the_result(tmp_path)
    assert (result.verdict, result.checks) == ("fail", ())
    assert "input_layernorm" in result.reason


def test_damaged_recorded_arrays_fail_and_are_not_overlooked(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)
    (tmp_path / RECORDED).write_bytes((tmp_path / RECORDED).read_bytes()[:100])
    result = the_result(tmp_path)
    assert result.verdict == "fail"
    assert RECORDED in result.reason


def test_a_family_that_we_lack_is_listed_and_does_not_fail(tmp_path: Path) -> None:
    write_target_fixture(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", config | {"model_type": "mamba", "architectures": ["M"]})
    result = the_result(tmp_path)
    assert (result.verdict, result.family) == ("not supported yet", "mamba")


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}, "DFlashDraftModel"),
        ({"model_type": "llama", "draft_vocab_size": 160}, "eagle3"),
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, "deepseek_v3 mtp"),
        (
            {"model_type": "qwen3_5", "text_config": {"mtp_num_hidden_layers": 1}},
            "qwen3_5 mtp",
        ),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "unknown"),
    ],
)
def test_recorded_drafts_are_listed_under_what_drafts(
    tmp_path: Path, config: dict[str, object], family: str
) -> None:
    write_json(tmp_path / "anything" / "config.json", config)
    save_file({"p0.tokens": torch.zeros(3)}, tmp_path / "numbers.safetensors")
    nested = tmp_path / "more"
    nested.mkdir()
    write_json(nested / "table.json", [{"gamma": 3}])
    listed = results(tmp_path)
    assert [(result.family, result.verdict) for result in listed] == [
        (family, "not supported yet"),
        (family, "not supported yet"),
    ]


def test_laws_of_acceptance_are_recognised_by_their_arrays(tmp_path: Path) -> None:
    save_file({"case.chain.joint0": torch.zeros(3)}, tmp_path / "laws.safetensors")
    assert the_result(tmp_path).family == "verification"


def test_json_that_only_describes_is_no_fixture(tmp_path: Path) -> None:
    write_json(tmp_path / "meta.json", {"n_prompts": 3})
    with pytest.raises(ConfigError, match="no golden fixture"):
        find_fixtures(tmp_path)


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        find_fixtures(tmp_path / "missing")


def test_recorded_prompt_lookups_are_reproduced(tmp_path: Path) -> None:
    write_json(tmp_path / "calls.json", [NGRAM_RECORD])
    result = the_result(tmp_path)
    assert (result.family, result.verdict, len(result.checks)) == ("ngram", "pass", 2)


def test_a_recorded_prompt_lookup_that_we_do_not_give_fails(tmp_path: Path) -> None:
    calls = [NGRAM_RECORD["vllm"][0] | {"draft": [9, 2]}]  # type: ignore[index]  # JSON
    write_json(tmp_path / "calls.json", [NGRAM_RECORD | {"vllm": calls}])
    result = the_result(tmp_path)
    assert result.verdict == "fail"
    assert "[9, 1] instead of [9, 2]" in result.checks[0].note


def suffix_scenario(**call: object) -> list[dict[str, object]]:
    """One request that repeats itself, and one speculation."""
    args = {
        "max_spec_tokens": 2,
        "max_spec_factor": 1.0,
        "max_spec_offset": 0.0,
        "min_token_prob": 0.1,
        "use_tree_spec": False,
    }
    speculation = {
        "op": "speculate",
        "req": "a",
        "context": [5, 6, 7, 8, 5, 6],
        "args": args,
        "token_ids": [7, 8],
        "parents": [-1, 0],
        "probs": [0.5, 0.5],
        "score": 1.0,
        "match_len": 2,
        "tie_on_path": False,
    }
    ops = [
        {"op": "start_request", "req": "a", "prompt": [5, 6, 7, 8, 5, 6]},
        speculation | call,
        {"op": "stop_request", "req": "a"},
        {"op": "state", "active": [], "cached": ["a"]},
    ]
    return [{"max_tree_depth": 8, "max_cached_requests": 4, "ops": ops}]


def test_recorded_suffix_speculations_are_reproduced(tmp_path: Path) -> None:
    write_json(tmp_path / "calls.json", suffix_scenario())
    result = the_result(tmp_path)
    assert (result.family, result.verdict) == ("suffix", "pass")


@pytest.mark.parametrize(
    ("change", "check"),
    [({"token_ids": [7, 5]}, "chains"), ({"score": 1.1}, "probabilities, scores")],
)
def test_a_recorded_suffix_speculation_that_we_do_not_give_fails(
    tmp_path: Path, change: dict[str, object], check: str
) -> None:
    write_json(tmp_path / "calls.json", suffix_scenario(**change))
    assert failures(the_result(tmp_path)) == [check]


def test_a_tie_that_the_reference_broke_at_random_is_left_out(tmp_path: Path) -> None:
    write_json(tmp_path / "calls.json", suffix_scenario(token_ids=[7, 5], tie_on_path=True))
    assert the_result(tmp_path).verdict == "pass"


def test_records_without_a_field_are_the_fixtures_fault(tmp_path: Path) -> None:
    write_json(tmp_path / "calls.json", suffix_scenario(args={}))
    result = the_result(tmp_path)
    assert result.verdict == "fail"
    assert "max_spec_factor" in result.reason


def test_the_guide_states_both_bounds_of_laws() -> None:
    guide = " ".join((REPOSITORY / "docs/guides/proving.md").read_text().split())
    assert f"recorded ones to {BOUND:g}." in guide
    assert f"verified {NUM_DRAWS} times" in guide
    assert f"within {DRAWN_BOUND:g} of the law" in guide
