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
        prompt_id: The line's `id`, or the file's name and the line's number; all prompts that are
            asked together have different ones.
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


def read_prompts(paths: Sequence[Path], *, may_share_ids: bool = False) -> list[Prompt]:
    """All prompts of some files, in order.

    Args:
        may_share_ids: Nobody asks by id, so that two prompts may have the same.
    Raises:
        ConfigError: A file cannot be read, or a line holds no prompt, or the id of another one;
            names the line.
    """
    placed = [item for path in paths for item in _read_file(path)]
    if not may_share_ids:
        _require_own_ids(placed)
    return [prompt for _, prompt in placed]


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


def _require_own_ids(placed: Sequence[tuple[str, Prompt]]) -> None:
    """Refuse two prompts of one id: what is known of one would be taken for the other's."""
    places: dict[str, str] = {}
    for place, prompt in placed:
        first = places.setdefault(prompt.prompt_id, place)
        if first is not place:
            raise ConfigError(
                f'{first} and {place} have the same id, "{prompt.prompt_id}"',
                hint='give each prompt an "id" of its own; without one it is the file\'s name and '
                "the line's number, the same in files of one name",
            )


def _read_file(path: Path) -> list[tuple[str, Prompt]]:
    """Prompts, each behind the place where it stands, in words."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # strings may hold other line ends
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint=_HINT) from error
    placed = [
        (f"{path}, line {number}", _prompt(path.name, number, _entry(path, number, line)))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not placed:
        raise ConfigError(f"{path} holds no prompts", hint=_HINT)
    return placed


def _entry(path: Path, number: int, line: str) -> object:
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, line {number}, is not JSON: {error}", hint=_HINT) from error
    return entry


def _prompt(file_name: str, number: int, entry: object) -> Prompt:
    if isinstance(entry, dict):
        stem = Path(file_name).stem
        place = f"{file_name}, line {number}"
        prompt_id = _name(entry, "id", f"{stem}/{number}", place)
        category = _name(entry, "category", stem, place)
        if isinstance(entry.get("prompt"), str) and entry["prompt"]:
            return Prompt(prompt_id, category, text=entry["prompt"])
        if _are_messages(entry.get("messages")):
            return Prompt(prompt_id, category, messages=tuple(entry["messages"]))
    raise ConfigError(f"{file_name}, line {number}, holds no prompt", hint=_HINT)


def _name(
    entry: Mapping[str, Any],  # Any: JSON
    key: str,
    default: str,
    place: str,
) -> str:
    """A value as text; the default where there is none, or null, or an empty text."""
    value = entry.get(key)
    name = default if value is None or value == "" else str(value)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}, has {key} {name!a}: no text can hold the lone surrogate "
            f"U+{ord(name[error.start]):04X}",
            hint="write it in whole characters",
        ) from error
    return name


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message for message in value)
    )
