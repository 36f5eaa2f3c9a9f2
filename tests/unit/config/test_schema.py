"""The schema: defaults that work, closed and frozen classes, named drafter instances."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slipstream.config.control import CostControl, FixedControl
from slipstream.config.fields import settings
from slipstream.config.model import ModelConfig
from slipstream.config.schema import Config
from slipstream.config.section import parse_bytes
from slipstream.config.speculation import (
    NgramConfig,
    ShippedConfig,
    SpeculationConfig,
    SuffixConfig,
)


def test_defaults_speculate_by_copying_and_with_what_is_shipped_under_cost_control() -> None:
    speculation = Config().speculation
    assert speculation.drafters == (SuffixConfig(), ShippedConfig(min_target_bits=12.0))
    assert speculation.controller == CostControl()


def test_default_server_answers_this_machine_only() -> None:
    assert Config().server.host == "127.0.0.1"


def test_nothing_writes_to_a_built_config() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().server.port = 1


def test_config_survives_json() -> None:
    config = Config(speculation=SpeculationConfig(drafters=(NgramConfig(), SuffixConfig())))
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_every_setting_has_a_description_that_ends_in_a_full_stop() -> None:
    poor = [
        setting.path
        for setting in settings()
        if not (setting.field.description or "").rstrip().endswith(".")
    ]
    assert not poor


def test_bare_names_are_short_for_tables_with_that_kind() -> None:
    speculation = SpeculationConfig.model_validate(
        {"drafters": ["ngram", "suffix"], "controller": "fixed"}
    )
    assert speculation.drafters == (NgramConfig(), SuffixConfig())
    assert speculation.controller == FixedControl()


def test_controller_without_a_kind_is_the_cost_controller() -> None:
    speculation = SpeculationConfig.model_validate({"controller": {"decay": 0.5}})
    assert speculation.controller == CostControl(decay=0.5)


def test_empty_list_of_drafters_is_speculation_off() -> None:
    assert SpeculationConfig.model_validate({"drafters": []}).drafters == ()


def test_home_folder_is_expanded_in_paths() -> None:
    config = Config.model_validate({"model": {"cache_dir": "~/weights"}})
    assert config.model.cache_dir == Path.home() / "weights"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("17", 17),
        ("1B", 1),
        ("2GiB", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("64kib", 64 * 1024),
    ],
)
def test_sizes_in_words(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "2XB", "-1", "1e3", "0.3B"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=2**20), st.sampled_from(["KiB", "MiB", "GiB", "TB"]))
def test_whole_sizes_are_exact(count: int, unit: str) -> None:
    factor = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TB": 10**12}[unit]
    assert parse_bytes(f"{count}{unit}") == count * factor


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ("default", "SmolLM2-135M-Instruct"),
        ("wheel:a==1/b/Tiny.gguf", "Tiny"),
        ("org/model", "org/model"),
    ],
)
def test_other_programs_are_not_told_names_that_only_we_know(source: str, shared: str) -> None:
    assert ModelConfig(source=source).shared_source == shared
