"""Prompts of a benchmark: files of JSON lines, or the small set that ships with Slipstream.

A line holds `messages` or `prompt`, and perhaps `id` and `category`. Two user messages in a row are
two turns: the first is answered before the second is sent. Other keys (references, tools, response
formats, metadata) are not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import ConfigError

Message = Mapping[str, Any]  # Any: message values are the chat template's business

DEFAULT_SET = "default_prompts.json"
_T = TypeVar("_T")
_HINT = 'each line is a JSON object with "messages" or "prompt"'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation, or one text to complete.

    Attributes:
        prompt_id: The line's `id`, or the file's name and the line's number.
        category: The line's `category`, or the file's name.
        messages: A conversation; empty where `text` is set.
        text: A prompt to complete as it is.
    """

    prompt_id: str
    category: str
    messages: tuple[Message, ...] = ()
    text: str | None = None

    def turns(self) -> Iterator[tuple[Message, ...]]:
        """Messages that each turn adds before its answer; one empty turn for a text."""
        pending: list[Message] = []
        for message in self.messages:
            if pending and pending[-1].get("role") == message.get("role") == "user":
                yield tuple(pending)
                pending = []
            pending.append(message)
        yield tuple(pending)


def read_prompts(paths: Sequence[Path]) -> list[Prompt]:
    """All prompts of some files, in order.

    Raises:
        ConfigError: A file cannot be read, or a line holds no prompt; names the line.
    """
    return [prompt for path in paths for prompt in _read_file(path)]


def default_prompts() -> list[Prompt]:
    """The set that ships with Slipstream: short, mixed, written for it."""
    text = resources.files("slipstream.bench").joinpath(DEFAULT_SET).read_text(encoding="utf-8")
    entries: list[object] = json.loads(text)
    return [_prompt(DEFAULT_SET, number, entry) for number, entry in enumerate(entries, start=1)]


def select_prompts(
    prompts: Sequence[Prompt], *, max_prompts: int | None = None, per_category: int | None = None
) -> list[Prompt]:
    """At most `max_prompts` in all or `per_category` of each category, evenly spaced.

    The choice depends on nothing but the arguments, and the order stays.
    """
    if max_prompts is not None:
        prompts = _evenly(prompts, max_prompts)
    if per_category is None:
        return list(prompts)
    chosen: set[int] = set()
    for members in _by_category(prompts).values():
        chosen.update(_evenly(members, per_category))
    return [prompt for index, prompt in enumerate(prompts) if index in chosen]


def group_prompts(prompts: Sequence[Prompt], size: int) -> list[tuple[int, ...]]:
    """Indices of prompts that run together: at most `size`, all of one category."""
    groups = [
        tuple(members[start : start + size])
        for members in _by_category(prompts).values()
        for start in range(0, len(members), size)
    ]
    return sorted(groups)


def _by_category(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        members.setdefault(prompt.category, []).append(index)
    return members


def _evenly(items: Sequence[_T], count: int) -> list[_T]:
    if count >= len(items):
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _read_file(path: Path) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # strings may hold other line ends
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint=_HINT) from error
    prompts = [
        _prompt(path.name, number, _entry(path, number, line))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"{path} holds no prompts", hint=_HINT)
    return prompts


def _entry(path: Path, number: int, line: str) -> object:
    try:
        entry: object = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}, is not JSON: {error}", hint=_HINT) from error
    return entry


def _prompt(file_name: str, number: int, entry: object) -> Prompt:
    if isinstance(entry, dict):
        stem = Path(file_name).stem
        prompt_id = str(entry.get("id", f"{stem}/{number}"))
        category = str(entry.get("category", stem))
        if isinstance(entry.get("prompt"), str) and entry["prompt"]:
            return Prompt(prompt_id, category, text=entry["prompt"])
        if _are_messages(entry.get("messages")):
            return Prompt(prompt_id, category, messages=tuple(entry["messages"]))
    raise ConfigError(f"{file_name}, line {number}, holds no prompt", hint=_HINT)


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message for message in value)
    )
