"""Sources of the configuration, their order, and what each value remembers of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.config.control import CostControl, FixedControl
from slipstream.config.load import load_config, load_with_sources
from slipstream.config.sources import Origin
from slipstream.config.speculation import NgramConfig, SuffixConfig
from slipstream.errors import ConfigError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, env=env, overrides=overrides)
    return caught.value.message


def test_no_source_gives_the_defaults() -> None:
    assert load_config().server.port == 8000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "speculation:\n  max_draft_len: 4\nmemory:\n  kv_bytes: 2GiB\n"),
        ("c.yml", "speculation: {max_draft_len: 4}\nmemory: {kv_bytes: 2147483648}\n"),
        ("c.toml", '[speculation]\nmax_draft_len = 4\n[memory]\nkv_bytes = "2GiB"\n'),
        ("c.json", '{"speculation": {"max_draft_len": 4}, "memory": {"kv_bytes": "2GiB"}}'),
    ],
)
def test_yaml_toml_and_json_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    config = load_config(file=write(tmp_path, name, text))
    assert config.speculation.max_draft_len == 4
    assert config.memory.kv_bytes == 2 * 2**30


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(
        tmp_path, "c.yaml", "scheduler: {max_num_requests: 2, max_queue_len: 2, max_step_tokens: 2}"
    )
    env = {
        "SLIPSTREAM_SCHEDULER__MAX_NUM_REQUESTS": "3",
        "SLIPSTREAM_SCHEDULER__MAX_QUEUE_LEN": "3",
    }
    loaded = load_with_sources(file=file, env=env, overrides={"scheduler.max_num_requests": 4})
    scheduler = loaded.config.scheduler
    assert (scheduler.max_num_requests, scheduler.max_queue_len) == (4, 3)
    assert (scheduler.max_step_tokens, scheduler.starvation_s) == (2, 5.0)
    origins = {item.path: item.origin for item in loaded.settings}
    assert origins["scheduler.max_num_requests"].source == "flag"
    assert origins["scheduler.max_queue_len"] == Origin(
        "env", "SLIPSTREAM_SCHEDULER__MAX_QUEUE_LEN"
    )
    assert origins["scheduler.max_step_tokens"] == Origin("file", str(file))
    assert origins["scheduler.starvation_s"] == Origin("default")


def test_a_value_inside_a_given_list_remembers_whether_it_was_given() -> None:
    drafters = '["suffix", {"kind": "ngram", "min_n": 3}]'
    loaded = load_with_sources(env={"SLIPSTREAM_SPECULATION__DRAFTERS": drafters})
    sources = {item.path: item.origin.source for item in loaded.settings}
    assert sources["speculation.drafters[0].kind"] == "env"
    assert sources["speculation.drafters[0].max_depth"] == "default"
    assert sources["speculation.drafters[1].min_n"] == "env"
    assert sources["speculation.drafters[1].max_n"] == "default"


def test_lists_in_the_environment_are_json() -> None:
    env = {"SLIPSTREAM_SPECULATION__DRAFTERS": '[{"kind": "ngram", "max_n": 7}, "suffix"]'}
    assert load_config(env=env).speculation.drafters == (NgramConfig(max_n=7), SuffixConfig())


def test_text_settings_keep_text_that_looks_like_a_number() -> None:
    config = load_config(env={"SLIPSTREAM_MODEL__REVISION": "1234567"})
    assert config.model.revision == "1234567"


def test_null_in_the_environment_switches_an_optional_limit_off() -> None:
    config = load_config(env={"SLIPSTREAM_SCHEDULER__QUEUE_TIMEOUT_S": "null"})
    assert config.scheduler.queue_timeout_s is None


@pytest.mark.parametrize("text", ["false", "off", "no", "0", "False"])
def test_switches_in_the_environment_take_the_usual_words(text: str) -> None:
    assert not load_config(env={"SLIPSTREAM_MEMORY__PREFIX_CACHE": text}).memory.prefix_cache


def test_flag_reaches_into_the_default_controller() -> None:
    config = load_config(overrides={"speculation.controller.decay": "0.5"})
    assert config.speculation.controller == CostControl(decay=0.5)


def test_flag_replaces_a_whole_table(tmp_path: Path) -> None:
    file = write(tmp_path, "c.yaml", "speculation: {controller: {kind: cost, decay: 0.5}}")
    config = load_config(file=file, overrides={"speculation.controller": "fixed"})
    assert config.speculation.controller == FixedControl()


def test_flag_reaches_into_a_controller_that_the_file_names_in_short(tmp_path: Path) -> None:
    file = write(tmp_path, "c.yaml", "speculation: {controller: cost}")
    config = load_config(file=file, overrides={"speculation.controller.probe_interval": 8})
    assert config.speculation.controller == CostControl(probe_interval=8)


def test_empty_file_and_empty_section_are_no_error(tmp_path: Path) -> None:
    assert load_config(file=write(tmp_path, "empty.yaml", "")) == load_config()
    assert load_config(file=write(tmp_path, "section.yaml", "memory:\n")) == load_config()


def test_variables_without_our_prefix_are_left_alone() -> None:
    load_config(env={"PATH": "x", "SLIPSTREAM_DEBUG": "1", "SLIPSTREAM_API_KEYS": "k"})


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.yaml cannot be read" in refusal(file=tmp_path / "nowhere.yaml")


def test_unknown_file_format_names_the_known_ones(tmp_path: Path) -> None:
    assert ".yaml, .yml, .toml or .json" in refusal(file=write(tmp_path, "c.ini", ""))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("c.yaml", "server: {port: 1\n", "in line"),
        ("c.yaml", "server: {}\nserver: {}\n", 'the key "server" is given twice in line 2'),
        ("c.yaml", "1: {}\n", "the key 1 must be text in line 1"),
        ("c.toml", "port = \n", "malformed"),
        ("c.json", '{"server": {}, "server": {}}', 'the key "server" is given twice'),
        ("c.yaml", "- a\n", "must hold settings"),
    ],
)
def test_malformed_file_says_where(tmp_path: Path, name: str, text: str, reason: str) -> None:
    message = refusal(file=write(tmp_path, name, text))
    assert name in message
    assert reason in message


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"model: {served_name: \xff}")
    assert "is not UTF-8 text" in refusal(file=path)


def test_json_schema_is_plain_json() -> None:
    from slipstream.config.schema import Config

    schema = json.loads(json.dumps(Config.model_json_schema()))
    assert schema["additionalProperties"] is False
