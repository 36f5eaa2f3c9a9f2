"""Files of prompts for `slipstream generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cli.prompt_file import read_prompts
from slipstream.errors import ConfigError


def test_prompts_and_conversations_come_in_order(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "Hi"}\n\n{"messages": [{"role": "user", "content": ""}]}\n{"prompt": ""}\n'
    )
    assert read_prompts(file) == ["Hi", [{"role": "user", "content": ""}], ""]


def test_names_that_other_commands_give_prompts_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": "river", "category": "qa", "prompt": "Hi"}\n')
    assert read_prompts(file) == ["Hi"]


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": 5}',
        '{"prompt": "a", "temperature": 1}',
        '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
        "{}",
        '["a"]',
        '{"messages": []}',
        '{"messages": "a"}',
        '{"messages": ["a"]}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": null}]}',
        '{"messages": [{"role": "user", "content": "b", "name": "c"}]}',
    ],
)
def test_a_line_of_another_shape_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(ConfigError, match="line 3 is neither a prompt nor a conversation"):
        read_prompts(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"', "line 1 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"prompt": "\xff"}', "must be UTF-8, byte 12 is not"),
    ],
)
def test_what_is_no_text_or_no_json_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_prompts(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl cannot be read: No such file"):
        read_prompts(tmp_path / "nowhere.jsonl")
