"""Sentences for everything that can be wrong with a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from slipstream.config.elsewhere import (
    OUR_NAMES,
    SECRET_NAMES,
    SECRETS_REASON,
    UNAVAILABLE_KEYS,
    UNAVAILABLE_VALUES,
)
from slipstream.config.fields import Place, either, locate, settings
from slipstream.errors import ConfigError

_SHOWN_LEN = 60


def config_error(problems: Sequence[str]) -> ConfigError:
    """One error that lists every problem; there must be at least one."""
    hint = "`slipstream config schema` and docs/reference/config.md list every setting"
    if len(problems) == 1:
        return ConfigError(problems[0], hint=hint)
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return ConfigError(f"{len(problems)} settings cannot be used:{lines}", hint=hint)


class NamedOrigin(Protocol):
    """Who gave a value; see `slipstream.config.sources.Origin`."""

    @property
    def name(self) -> str: ...


def explain(
    error: ValidationError, origin_of: Callable[[tuple[str | int, ...]], NamedOrigin]
) -> Iterator[str]:
    """One sentence per problem that pydantic found, with the variable, flag or file it is from."""
    for details in error.errors(include_url=False):
        place = locate(details["loc"])
        sentence = _sentence(details, place)
        origin = origin_of(place.steps)
        yield f"{sentence} (from {origin.name})" if origin.name else sentence


def _sentence(details: ErrorDetails, place: Place) -> str:
    kind = details["type"]
    context: Mapping[str, Any] = details.get("ctx", {})  # Any: as pydantic types it
    if kind == "extra_forbidden":
        return unknown_key(place.path, place.owner.model_fields, place.kind)
    if kind == "missing":
        return f"{place.path} is missing: {_description(place)}"
    if kind == "value_error":
        return f"{place.path} {context['error']}"
    if kind == "union_tag_invalid":
        return _wrong_value(f"{place.path}.kind", context["tag"], _tags(context["expected_tags"]))
    value, allowed = details["input"], place.expected
    if kind == "literal_error":
        return _wrong_value(place.path, value, allowed, str(place.steps[-1]))
    if kind == "union_tag_not_found" and isinstance(value, dict):
        return f"{place.path} has no kind; it must be {allowed}"
    advice = "; put it in quotes" if kind == "string_type" and value is not None else ""
    return f"{place.path} must be {allowed}, got {shown(value)}{advice}"


def _description(place: Place) -> str:
    description = place.field.description if place.field else None
    return description or "it has no default"


def _tags(expected_tags: str) -> str:
    return either([tag.strip().strip("'") for tag in expected_tags.split(",")])


def _wrong_value(path: str, value: object, allowed: str, name: str = "kind") -> str:
    reason = UNAVAILABLE_VALUES.get(name, {}).get(str(value))
    if reason:
        return (
            f'{path}: "{value}" is not available in this version ({reason}); it must be {allowed}'
        )
    near = get_close_matches(str(value), allowed.replace('"', " ").replace(",", " ").split(), n=1)
    guess = f'; did you mean "{near[0]}"?' if near else ""
    return f"{path} must be {allowed}, got {shown(value)}{guess}"


def unknown_key(path: str, siblings: Mapping[str, object], kind: str = "") -> str:
    """Says that a key is no setting, and what was probably meant.

    Args:
        path: The whole dotted path.
        siblings: Names that would be allowed in its place.
        kind: Which member of a tagged union the key stands in, if it stands in one.
    """
    parent, _, name = path.rpartition(".")
    plain_name = name.lower().replace("-", "_")
    if plain_name in SECRET_NAMES:
        return f"{path} {SECRETS_REASON}"
    if plain_name in UNAVAILABLE_KEYS:
        return f"{path} is not available in this version: {UNAVAILABLE_KEYS[plain_name]}"
    near = get_close_matches(plain_name, siblings, n=1, cutoff=0.7)
    guess = f"{parent}.{near[0]}".lstrip(".") if near else "" if kind else nearest_setting(path)
    of_kind = f' of the kind "{kind}"' if kind else ""
    if guess:
        return f"{path} is not a setting{of_kind}; did you mean {guess}?"
    return f"{path} is not a setting{of_kind}; allowed here: {', '.join(siblings)}"


def nearest_setting(path: str) -> str | None:
    """The setting anywhere in the schema whose name, or whole path, is most like this one."""
    name = path.lower().replace("-", "_").rpartition(".")[2]
    if name in OUR_NAMES:
        return OUR_NAMES[name]
    plain_paths = [setting.path for setting in settings() if "[" not in setting.path]
    for candidate in plain_paths:
        if candidate.rpartition(".")[2] == name:
            return candidate
    near = get_close_matches(path.lower(), plain_paths, n=1, cutoff=0.75)
    return near[0] if near else None


def shown(value: object) -> str:
    """The value as a user would write it, shortened."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a table"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _SHOWN_LEN else f"{text[: _SHOWN_LEN - 3]}..."
