"""Find golden fixtures under a folder, recompute each, and judge.

A fixture is known by what its files hold, never by what it is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slipstream.audit import (
    golden_blocks,
    golden_confidence,
    golden_eagle,
    golden_laws,
    golden_modelfree,
    golden_mtp,
    golden_targets,
)
from slipstream.audit.draft_folder import DraftFolder, read_draft_folder
from slipstream.audit.fixture import Check, Fixture, FixtureError, Result, guarded
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.models.drafts.load import describe_checkpoint
from slipstream.weights.open import open_checkpoint

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
    recorded = _recorded_arrays(folder)
    drafts = read_draft_folder(folder) if recorded else None
    for path, names in recorded.items():
        yield _fixture_of_arrays(path, names, drafts, family)
    for path in sorted(folder.glob("*.json")):
        records = _read_list(path)
        if records is not None:
            yield _fixture_of_records(path, records, family)


def _fixture_of_arrays(
    path: Path, names: frozenset[str], drafts: DraftFolder | None, family: str
) -> Fixture:
    """What a file of arrays is, told by their names and by the models beside it."""
    run: Callable[[], list[Check]] | None = None
    if golden_laws.is_law(names):
        return Fixture("verification", path, guarded(partial(golden_laws.law_checks, path)))
    if (checks_of := golden_confidence.checks_of_arrays(names)) is not None:
        run = partial(checks_of, path)
    elif drafts is not None and golden_eagle.is_trace(names):
        run = golden_eagle.EagleAudit(drafts, path).checks
    elif drafts is not None and golden_blocks.is_trace(names):
        run = golden_blocks.BlockAudit(drafts, path).checks
    elif golden_mtp.is_trace(names) and (model := golden_mtp.model_with_heads(path.parent)):
        run = golden_mtp.MtpAudit(model, path).checks
    return Fixture(family, path, None if run is None else guarded(run))


def _fixture_of_records(
    path: Path,
    records: list[Any],  # Any: whatever the file holds
    family: str,
) -> Fixture:
    if golden_confidence.is_schedule(records):
        run = partial(golden_confidence.schedule_checks, records)
        return Fixture(family, path, guarded(run))
    return golden_modelfree.fixture_of(path, records) or Fixture(family, path, None)


def _recorded_arrays(folder: Path) -> dict[Path, frozenset[str]]:
    """Names in each safetensors file of a folder; none where one is unreadable."""
    return {path: _names(path) for path in sorted(folder.glob("*.safetensors"))}


def _names(path: Path) -> frozenset[str]:
    try:
        with safe_open(path, framework="np") as file:
            return frozenset(file.keys())
    except (SafetensorError, OSError):
        return frozenset()


def _draft_family(folder: Path) -> str | None:
    """What drafts in a folder whose sub-folders hold the models; None where nothing does."""
    found: dict[str, None] = {}
    for child in sorted(path for path in folder.iterdir() if path.is_dir()):
        config = _read_config(child)
        if config is None:
            continue
        nested = config.get("text_config") or {}
        architecture = next(iter(config.get("architectures") or []), "")
        if (draft := _described_family(child)) is not None:
            found[draft] = None
        elif "draft_vocab_size" in config:
            found["eagle3"] = None
        elif any(config.get(name) or nested.get(name) for name in _MTP_FIELDS):
            found[f"{config.get('model_type', _UNKNOWN)} mtp"] = None
        elif architecture and not architecture.endswith(
            ("ForCausalLM", "ForConditionalGeneration")
        ):
            found[architecture] = None
    return ", ".join(found) or None


def _described_family(folder: Path) -> str | None:
    """The family of a draft checkpoint; None for others and for what cannot be read."""
    try:
        described = describe_checkpoint(open_checkpoint(folder))
    except SlipstreamError:
        return None
    return None if described is None else described.layout.family


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
