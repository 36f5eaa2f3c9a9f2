"""Builds the configuration from its four sources: flag > environment > file > default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from slipstream.config.problems import config_error, explain
from slipstream.config.schema import Config
from slipstream.config.sources import Entry, Origin, read_env, read_file, read_overrides


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One value as it will be used; `value` is as JSON would hold it."""

    path: str
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with every setting's value and source, in the schema's order."""

    config: Config
    settings: tuple[EffectiveSetting, ...]


def load_config(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """The effective configuration; see `load_with_sources`."""
    return load_with_sources(file=file, env=env, overrides=overrides).config


def load_with_sources(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """Merges the sources and checks the result.

    Args:
        file: YAML, TOML or JSON file.
        env: Environment variables; the command line passes `os.environ`.
        overrides: Dotted key -> value, as in `{"server.port": 8001}`; text is read as in the
            environment. A whole table or list replaces what lower sources gave for it.

    Raises:
        ConfigError: Lists every unknown key and wrong value of all sources at once.
    """
    problems: list[str] = []
    tables = read_file(file) if file is not None else {}
    entries = (
        *read_env(env or {}, problems),
        *read_overrides(overrides or {}, problems),
    )
    layers = _Layers(file, tables, entries)
    try:
        config = Config.model_validate(layers.merged())
    except ValidationError as error:
        raise config_error([*problems, *explain(error, layers.origin)]) from error
    if problems:
        raise config_error(problems)
    effective = tuple(
        EffectiveSetting(_text(path), value, layers.origin(path))
        for path, value in _flatten((), config, config.model_dump(mode="json"))
    )
    return LoadedConfig(config, effective)


@dataclass(frozen=True, slots=True)
class _Layers:
    """What the sources gave, lowest first: the file's tables, then single entries."""

    file: Path | None
    tables: Mapping[str, object]
    entries: tuple[Entry, ...]

    def merged(self) -> dict[str, object]:
        tables = deepcopy(dict(self.tables))
        for entry in self.entries:
            _place(tables, entry)
        return tables

    def origin(self, path: tuple[str | int, ...]) -> Origin:
        """Who gave the value at `path`, alone or within a table or list."""
        for entry in reversed(self.entries):  # the last one won
            if path[: len(entry.path)] == entry.path:
                is_given = _holds(entry.value, path[len(entry.path) :])
                return entry.origin if is_given else Origin("default")
        is_given = bool(path) and _holds(self.tables, path)
        return Origin("file", str(self.file)) if is_given else Origin("default")


def _holds(value: object, path: tuple[str | int, ...]) -> bool:
    for part in path:
        if isinstance(value, str):
            return part == "kind"  # a bare name is short for a table with that kind
        if isinstance(value, Mapping):
            if part not in value:
                return False
            value = value[part]
        elif isinstance(value, (list, tuple)) and isinstance(part, int):
            value = value[part]
    return True


def _place(tables: dict[str, object], entry: Entry) -> None:
    node = tables
    for part in entry.path[:-1]:
        child = node.get(part)
        if isinstance(child, str):
            child = {"kind": child}
        child = child if isinstance(child, dict) else {}
        node[part] = child
        node = child
    node[entry.path[-1]] = entry.value


def _flatten(
    path: tuple[str | int, ...], value: object, dumped: object
) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        for name in type(value).model_fields:
            yield from _flatten((*path, name), getattr(value, name), dumped[name])
    elif isinstance(value, tuple) and isinstance(dumped, list) and value:
        for index, item in enumerate(value):
            yield from _flatten((*path, index), item, dumped[index])
    else:
        yield path, dumped


def _text(path: tuple[str | int, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")
