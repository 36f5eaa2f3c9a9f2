"""Where settings come from: files in three formats, environment variables, and flags."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic.fields import FieldInfo

from slipstream.config.annotations import accepts_none, alternatives, is_text, models
from slipstream.config.elsewhere import SECRET_NAMES, SECRETS_REASON
from slipstream.config.fields import find, settings
from slipstream.config.problems import unknown_key
from slipstream.config.schema import Config
from slipstream.errors import ConfigError

ENV_PREFIX = "SLIPSTREAM_"
OTHER_VARIABLES = ("SLIPSTREAM_API_KEYS", "SLIPSTREAM_DEBUG")
"""Variables with our prefix that are no settings."""

_SPOKEN_BOOLS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Who gave a value.

    Attributes:
        source: `flag`, `env`, `file` or `default`.
        name: The variable, flag or file in words; empty for a default.
    """

    source: Literal["flag", "env", "file", "default"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value for one setting; `path` is `("speculation", "max_draft_len")`."""

    path: tuple[str, ...]
    value: object
    origin: Origin


def read_file(path: Path) -> dict[str, object]:
    """The tables of a YAML, TOML or JSON file; a table that is left empty is no error.

    Raises:
        ConfigError: The file is missing, unreadable, of another kind, malformed, holds a key
            twice or holds no table.
    """
    try:
        content: object = _parse(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at {error.start}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is malformed: {_one_line(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold settings as `section: ...` tables")
    return {
        key: {} if value is None and key in Config.model_fields else value
        for key, value in content.items()
    }


def _parse(path: Path, text: str) -> object:
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return yaml.load(text, _StrictYaml)
        case ".toml":
            return tomllib.loads(text)
        case ".json":
            return json.loads(text, object_pairs_hook=_unique)
    raise ConfigError(
        f"{path} has no known format; its name must end in .yaml, .yml, .toml or .json"
    )


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return str(error)


class _StrictYaml(yaml.SafeLoader):
    """Refuses what plain YAML takes in silence: a key given twice, a key that is no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if not isinstance(key, str):
                problem = f"the key {key!r} must be text"
            elif key in keys[:index]:
                problem = f'the key "{key}" is given twice'
            else:
                continue
            raise yaml.constructor.ConstructorError(
                problem=problem, problem_mark=node.value[index][0].start_mark
            )
        return super().construct_mapping(node, deep)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f'the key "{twice}" is given twice')
    return table


def read_env(env: Mapping[str, str], problems: list[str]) -> Iterator[Entry]:
    """Entries of all variables `SLIPSTREAM_SECTION__KEY`; others with the prefix are problems."""
    for name, text in sorted(env.items()):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
        field = find(path)
        if field is not None:
            yield Entry(path, parse_text(text, field), Origin("env", name))
        else:
            problems.append(_unknown_variable(name, path))


def _unknown_variable(name: str, path: tuple[str, ...]) -> str:
    if path[-1] in SECRET_NAMES:
        return f"{name} is not read; API keys come from SLIPSTREAM_API_KEYS"
    known = [variable(item.path) for item in settings() if "[" not in item.path]
    near = [item for item in known if item.endswith(f"__{path[-1].upper()}")]
    near = near or get_close_matches(name, [*known, *OTHER_VARIABLES], n=1, cutoff=0.75)
    guess = f"; did you mean {near[0]}?" if near else "; settings are SLIPSTREAM_SECTION__KEY"
    return f"{name} names no setting{guess}"


def variable(path: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + path.upper().replace(".", "__")


def read_overrides(overrides: Mapping[str, object], problems: list[str]) -> Iterator[Entry]:
    """Entries of dotted keys from flags; text values are read as in environment variables."""
    for key, value in overrides.items():
        path = tuple(key.split("."))
        field = find(path)
        if field is None:
            problems.append(f"{_unknown_override(key, path)} (from a flag)")
        else:
            typed = parse_text(value, field) if isinstance(value, str) else value
            yield Entry(path, typed, Origin("flag", f"the flag for {key}"))


def _unknown_override(key: str, path: tuple[str, ...]) -> str:
    if path[-1] in SECRET_NAMES:
        return f"{key} {SECRETS_REASON}"
    parent = find(path[:-1])
    siblings = Config.model_fields if len(path) == 1 else _members(parent)
    return unknown_key(key, siblings)


def _members(field: FieldInfo | None) -> Mapping[str, object]:
    if field is None:
        return Config.model_fields
    return {name: 1 for owner in models(field.annotation).values() for name in owner.model_fields}


def parse_text(text: str, field: FieldInfo) -> object:
    """The value that a variable's text means for this field.

    Text stays text where only text fits; `null` is no value where that is allowed; else the text
    is JSON, and what is no JSON stays text for the schema to judge ("2GiB", or an error).
    """
    if text == "null" and accepts_none(field.annotation):
        return None
    if is_text(field.annotation):
        return text
    if bool in alternatives(field.annotation):
        return _SPOKEN_BOOLS.get(text.lower(), text)
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
