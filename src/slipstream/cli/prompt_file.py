"""Files of prompts: JSON lines, each with a prompt or a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from slipstream.errors import ConfigError

Conversation = list[dict[str, str]]

_IGNORED = {"id", "category"}  # names for `bench` and `audit`, which read the same files
_HINT = 'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}'


def read_prompts(file: Path) -> list[str | Conversation]:
    """The prompts of `file` in order; empty lines are skipped.

    Raises:
        ConfigError: It cannot be read, or a line is something else; names the line.
    """
    return [_entry(f"{file}, line {number}", line) for number, line in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} must be UTF-8, byte {error.start} is not") from error
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _entry(place: str, line: str) -> str | Conversation:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON: {error}", hint=_HINT) from error
    if isinstance(entry, dict):
        keys = entry.keys() - _IGNORED
        if keys == {"prompt"} and isinstance(entry["prompt"], str):
            return entry["prompt"]
        if keys == {"messages"} and _is_conversation(entry["messages"]):
            messages: Conversation = entry["messages"]
            return messages
    shown = line.strip()
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise ConfigError(f"{place} is neither a prompt nor a conversation: {shown}", hint=_HINT)


def _is_conversation(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_message(item) for item in value)


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"role", "content"}
        and all(isinstance(part, str) for part in value.values())
    )
