"""API keys come from a variable or from a file of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.config.secrets import load_api_keys
from slipstream.config.server import ServerConfig
from slipstream.errors import ConfigError


def test_no_source_gives_no_key() -> None:
    assert load_api_keys(ServerConfig(), {}) == ()


def test_variable_holds_keys_with_commas() -> None:
    assert load_api_keys(ServerConfig(), {"SLIPSTREAM_API_KEYS": "a, b,,a"}) == ("a", "b")


def test_file_holds_a_key_per_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team one\nfirst\n\nsecond # until May\n", encoding="utf-8")
    keys = load_api_keys(ServerConfig(api_keys_file=path), {"SLIPSTREAM_API_KEYS": "zero"})
    assert keys == ("zero", "first", "second")


def test_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.api_keys_file .* cannot be read"):
        load_api_keys(ServerConfig(api_keys_file=tmp_path / "keys"), {})


def test_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no key"):
        load_api_keys(ServerConfig(api_keys_file=path), {})


def test_key_with_white_space_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="white space") as caught:
        load_api_keys(ServerConfig(), {"SLIPSTREAM_API_KEYS": "open sesame"})
    assert "sesame" not in caught.value.message
