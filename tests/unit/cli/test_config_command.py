"""`slipstream config show | check | schema` and the options that every command shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.cli.main import main
from slipstream.cli.options import load, load_drafting
from slipstream.config.speculation import SpeculationConfig
from slipstream.errors import ConfigError


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


def test_show_prints_each_value_and_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("scheduler: {max_queue_len: 9}\n", encoding="utf-8")
    monkeypatch.setenv("SLIPSTREAM_SERVER__PORT", "9000")
    assert run("config", "show", "--config", str(path), "--set", "memory.page_size=32") == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["memory.page_size"] == ["32", "flag"]
    assert lines["server.port"] == ["9000", "env", "SLIPSTREAM_SERVER__PORT"]
    assert lines["scheduler.max_queue_len"] == ["9", "file", str(path)]
    assert lines["scheduler.max_num_requests"] == ["32", "default"]


def test_show_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", "--json", "--set", "server.port=9") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["server.port"]["value"] == 9
    assert shown["server.port"]["source"] == "flag"


def test_check_of_a_valid_configuration_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check") == 0
    assert capsys.readouterr().out == "The configuration is valid.\n"


def test_check_prints_all_problems_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", "--set", "server.port=x", "--set", "server.prt=1") == 2
    error = capsys.readouterr().err
    assert "server.prt is not a setting; did you mean server.port?" in error
    assert "server.port must be a whole number from 0 to 65535" in error
    assert "hint: " in error


def test_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "schema") == 0
    assert "speculation" in json.loads(capsys.readouterr().out)["properties"]


def test_set_without_a_value_is_told_the_form() -> None:
    with pytest.raises(ConfigError, match=r"SECTION\.KEY=VALUE"):
        load(None, ["server.port"])


def test_later_set_wins_and_named_flags_win_over_set() -> None:
    texts = ["server.port=1", "server.port=2", "memory.page_size=8"]
    config = load(None, texts, {"memory.page_size": 4, "server.host": None})
    assert (config.server.port, config.memory.page_size) == (2, 4)


def test_value_may_hold_an_equals_sign() -> None:
    assert load(None, ["model.served_name=a=b"]).model.served_name == "a=b"


def test_no_speculation_empties_the_drafters() -> None:
    assert load_drafting(None, None, {}, False).speculation.drafters == ()
    assert load_drafting(None, None, {}, None).speculation.drafters != ()


def test_speculation_fills_an_empty_list_of_drafters(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("speculation: {drafters: []}\n", encoding="utf-8")
    assert load_drafting(path, None, {}, None).speculation.drafters == ()
    assert load_drafting(path, None, {}, True).speculation == SpeculationConfig()
    path.write_text("speculation: {drafters: [{kind: ngram}]}\n", encoding="utf-8")
    (only,) = load_drafting(path, None, {}, True).speculation.drafters
    assert only.kind == "ngram"
