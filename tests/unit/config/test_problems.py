"""What a wrong configuration is told: everything at once, each with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from slipstream.config.fields import settings
from slipstream.config.load import load_config
from slipstream.errors import ConfigError


def refusal(
    overrides: Mapping[str, object] | None = None,
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, env=env, overrides=overrides)
    return caught.value.message


def file_refusal(folder: Path, content: object) -> str:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return refusal(file=path).replace(f" (from {path})", "")


def test_misspelt_key_gets_the_nearest_name(tmp_path: Path) -> None:
    assert file_refusal(tmp_path, {"speculation": {"max_draft_lenn": 4}}) == (
        "speculation.max_draft_lenn is not a setting; did you mean speculation.max_draft_len?"
    )


def test_misspelt_section_gets_the_nearest_name(tmp_path: Path) -> None:
    assert "did you mean speculation?" in file_refusal(tmp_path, {"speculatoin": {"x": 1}})


def test_key_in_the_wrong_section_is_sent_to_the_right_one(tmp_path: Path) -> None:
    message = file_refusal(tmp_path, {"server": {"max_queue_len": 4}})
    assert "did you mean scheduler.max_queue_len?" in message


def test_hopeless_key_gets_the_list_of_its_place(tmp_path: Path) -> None:
    message = file_refusal(tmp_path, {"observability": {"qqqq": 4}})
    assert message == ("observability.qqqq is not a setting; allowed here: log_level, log_format")


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("num_speculative_tokens", "speculation.max_draft_len"),
        ("gpu_memory_utilization", "memory.utilization"),
        ("tree_width", "speculation.max_draft_nodes"),
        ("max_num_seqs", "scheduler.max_num_requests"),
    ],
)
def test_other_engines_names_are_translated(tmp_path: Path, key: str, ours: str) -> None:
    assert f"did you mean {ours}?" in file_refusal(tmp_path, {key: 4})


def test_translations_lead_to_settings() -> None:
    from slipstream.config.elsewhere import OUR_NAMES

    assert set(OUR_NAMES.values()) <= {setting.path for setting in settings()}


def test_wrong_number_gets_the_range() -> None:
    message = refusal({"speculation.max_draft_len": 99})
    assert "speculation.max_draft_len must be a whole number from 1 to 32, got 99" in message


def test_wrong_choice_gets_the_choices_and_a_guess() -> None:
    message = refusal({"observability.log_level": "warn"})
    assert 'must be "debug", "info", "warning" or "error", got "warn"' in message
    assert 'did you mean "warning"?' in message


def test_wrong_value_names_the_variable_that_gave_it() -> None:
    message = refusal(env={"SLIPSTREAM_SERVER__PORT": "http"})
    assert message.endswith('got "http" (from SLIPSTREAM_SERVER__PORT)')


@pytest.mark.parametrize("value", [True, "4.5", float("nan"), [], None])
def test_only_whole_numbers_count(value: object) -> None:
    assert "must be a whole number" in refusal({"scheduler.max_num_requests": value})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "NaN", "-Infinity"])
def test_numbers_must_be_finite(value: object) -> None:
    assert "must be a number" in refusal({"scheduler.starvation_s": value})


def test_number_for_text_is_told_about_quotes(tmp_path: Path) -> None:
    message = file_refusal(tmp_path, {"model": {"revision": 1234567}})
    assert message == "model.revision must be text or null, got 1234567; put it in quotes"


def test_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert file_refusal(tmp_path, {"server": 8000}) == "server must be a table, got 8000"


def test_unknown_variable_gets_the_nearest_one() -> None:
    message = refusal(env={"SLIPSTREAM_PORT": "1"})
    assert message == "SLIPSTREAM_PORT names no setting; did you mean SLIPSTREAM_SERVER__PORT?"


def test_all_problems_of_all_sources_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("server: {port: 70000}\nmodle: {}\n", encoding="utf-8")
    message = refusal(
        {"memory.utilization": "2", "serve.port": 1},
        file=path,
        env={"SLIPSTREAM_FOO": "1", "SLIPSTREAM_MEMORY__PAGE_SIZE": "0"},
    )
    assert message.startswith("6 settings cannot be used:")
    for part in ("server.port", "modle", "utilization", "serve.port", "_FOO", "page_size"):
        assert part in message


@pytest.mark.parametrize("key", ["api_key", "api_keys", "token"])
def test_secret_in_a_file_is_refused_with_the_reason_and_never_shown(
    tmp_path: Path, key: str
) -> None:
    message = file_refusal(tmp_path, {"server": {key: "sesame"}})
    assert f"server.{key} is a secret" in message
    assert "SLIPSTREAM_API_KEYS" in message
    assert "sesame" not in message


def test_secret_in_a_flag_or_variable_is_refused() -> None:
    assert "is a secret" in refusal({"server.api_keys": "sesame"})
    message = refusal(env={"SLIPSTREAM_SERVER__API_KEYS": "sesame"})
    assert "API keys come from SLIPSTREAM_API_KEYS" in message
    assert "sesame" not in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("speculation.verification", "typical"),
        ("speculation.drafters", ["eagle"]),
        ("speculation.controller", "goodput"),
        ("memory.kv_dtype", "fp8"),
        ("memory.draft_kv_dtype", "q8_0"),
    ],
)
def test_what_this_version_does_not_offer_is_refused_by_name(path: str, value: object) -> None:
    assert "is not available in this version" in refusal({path: value})


@pytest.mark.parametrize("path", ["engine.tensor_parallel_size", "observability.metrics_port"])
def test_settings_this_version_does_not_have_are_refused_with_the_reason(path: str) -> None:
    assert f"{path} is not available in this version: " in refusal({path: 2})


def test_lossy_verification_is_called_lossy() -> None:
    assert "lossy" in refusal({"speculation.verification": "typical"})


def test_two_drafters_of_one_name_are_refused() -> None:
    message = refusal({"speculation.drafters": ["ngram", {"kind": "suffix", "name": "ngram"}]})
    assert 'more than one is named "ngram"' in message


def test_drafter_without_a_kind_is_told_the_kinds() -> None:
    message = refusal({"speculation.drafters": [{"name": "a"}]})
    assert "speculation.drafters[0] has no kind" in message
    assert '"draft_model", "eagle3", "dflash", "dspark", "mtp" or "shipped"' in message


def test_draft_model_needs_a_source() -> None:
    message = refusal({"speculation.drafters": ["draft_model"]})
    assert message.startswith("speculation.drafters[0].source is missing: Where its weights are")


def test_key_of_another_kind_is_refused_by_kind() -> None:
    message = refusal({"speculation.controller": {"kind": "fixed", "decay": 0.5}})
    assert 'controller.decay is not a setting of the kind "fixed"' in message


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ({"memory.warn_at": 0.95}, "memory must have high_at at or above warn_at"),
        (
            {"speculation.drafters": [{"kind": "ngram", "min_n": 6}]},
            "speculation.drafters[0] must have min_n at or below max_n, got min_n 6 and max_n 5",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    overrides: Mapping[str, object], part: str
) -> None:
    assert part in refusal(overrides)
