"""Find golden fixtures under a folder, recompute each, and judge.

A fixture is known by what its files hold, never by what it is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slipstream.audit import golden_modelfree, golden_targets
from slipstream.audit.fixture import Fixture, FixtureError, Result
from slipstream.errors import ConfigError, SlipstreamError

_CONFIG = "config.json"
_UNKNOWN = "unknown"
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")

Json = Mapping[str, Any]  # Any: whatever the file holds


def find_fixtures(root: Path) -> list[Fixture]:
    """All fixtures in `root` and below, in the order of their paths.

    Raises:
        ConfigError: There is no such folder, or no fixture in it.
    """
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder", hint="name a folder with golden fixtures")
    folders = [root, *sorted(path for path in root.rglob("*") if path.is_dir())]
    families: dict[Path, str] = {}
    fixtures: list[Fixture] = []
    for folder in folders:
        families[folder] = _draft_family(folder) or families.get(folder.parent, _UNKNOWN)
        fixtures.extend(_fixtures_in(folder, families[folder]))
    if not fixtures:
        raise ConfigError(
            f"no golden fixture was found in {root} or below",
            hint="a fixture is a folder with config.json, weights and recorded arrays, or a JSON "
            "list of recorded proposals",
        )
    return fixtures


def judge(fixture: Fixture, root: Path) -> Result:
    """Recompute one fixture; whatever goes wrong with it is its verdict."""
    place = fixture.path.relative_to(root)
    name = str(place) if place.parts else root.name
    if fixture.run is None:
        return Result(fixture.family, name, "not supported yet")
    try:
        checks = tuple(fixture.run())
    except (FixtureError, SlipstreamError) as error:
        reason = error.message if isinstance(error, SlipstreamError) else str(error)
        return Result(fixture.family, name, "fail", reason=reason)
    is_passed = bool(checks) and all(check.is_passed for check in checks)
    return Result(fixture.family, name, "pass" if is_passed else "fail", checks)


def _fixtures_in(folder: Path, family: str) -> Iterator[Fixture]:
    config = _read_config(folder)
    if config is not None:
        yield from golden_targets.fixtures_in(folder, config, _recorded_arrays(folder))
        return
    for path in sorted(folder.glob("*.safetensors")):
        yield Fixture(_verification_family(path) or family, path, None)
    for path in sorted(folder.glob("*.json")):
        records = _read_list(path)
        if records is not None:
            yield golden_modelfree.fixture_of(path, records) or Fixture(family, path, None)


def _recorded_arrays(folder: Path) -> dict[Path, frozenset[str]]:
    """Names in each safetensors file beside a config.json; none where one is unreadable."""
    return {path: _names(path) for path in sorted(folder.glob("*.safetensors"))}


def _names(path: Path) -> frozenset[str]:
    try:
        with safe_open(path, framework="np") as file:
            return frozenset(file.keys())
    except (SafetensorError, OSError):
        return frozenset()


def _verification_family(path: Path) -> str | None:
    """Laws of acceptance have no model: their arrays are the laws' own."""
    names = _names(path)
    is_law = any(".chain.joint" in name or name.endswith(".end_prob") for name in names)
    return "verification" if is_law else None


def _draft_family(folder: Path) -> str | None:
    """What drafts in a folder whose sub-folders hold the models; None where nothing does."""
    found: dict[str, None] = {}
    for child in sorted(path for path in folder.iterdir() if path.is_dir()):
        config = _read_config(child) or {}
        architecture = next(iter(config.get("architectures") or []), "")
        nested = config.get("text_config") or {}
        if "draft_vocab_size" in config:
            found["eagle3"] = None
        elif any(config.get(name) or nested.get(name) for name in _MTP_FIELDS):
            found[f"{config.get('model_type', _UNKNOWN)} mtp"] = None
        elif architecture and not architecture.endswith(
            ("ForCausalLM", "ForConditionalGeneration")
        ):
            found[architecture] = None
    return ", ".join(found) or None


def _read_config(folder: Path) -> Json | None:
    path = folder / _CONFIG
    if not path.is_file():
        return None
    config = _read_json(path)
    return config if isinstance(config, dict) else {}


def _read_list(path: Path) -> list[Any] | None:  # Any: whatever the file holds
    """The records of a JSON file; other JSON describes a fixture but is none."""
    content = _read_json(path)
    return content if isinstance(content, list) and content else None


def _read_json(path: Path) -> object:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content
