"""Puts the drafters that come with Slipstream where the configuration asks for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.config.speculation import (
    SHIPPED_SOURCE,
    DFlashConfig,
    DrafterConfig,
    DraftNetConfig,
    DSparkConfig,
    Eagle3Config,
    ShippedConfig,
)
from slipstream.errors import ConfigError
from slipstream.models.drafts.catalog import FOLDER, read_shipped
from slipstream.models.identity import TargetIdentity

log = logging.getLogger("slipstream.engine")

_Chosen = Eagle3Config | DFlashConfig | DSparkConfig
_CLASSES: Mapping[str, type[_Chosen]] = {
    "eagle3": Eagle3Config,
    "dflash": DFlashConfig,
    "dspark": DSparkConfig,
}


def choose_shipped(
    drafters: Sequence[DrafterConfig],
    target: TargetIdentity,
    target_bits: float,
    folder: Path = FOLDER,
) -> tuple[DrafterConfig, ...]:
    """The same drafters, with files for those that come with Slipstream.

    An entry of kind `shipped` vanishes where nothing is shipped for the target, or where the
    target's weights are smaller than it asks for.

    Args:
        target_bits: Of a weight, on average.
    Raises:
        ConfigError: An entry of another kind asks for a shipped drafter that does not exist.
    """
    chosen: list[DrafterConfig] = []
    for item in drafters:
        if isinstance(item, ShippedConfig):
            found = _of_any_kind(item, target, target_bits, folder)
            chosen += [] if found is None else [found]
        elif isinstance(item, DraftNetConfig) and item.source == SHIPPED_SOURCE:
            chosen.append(_of_its_kind(item, target, folder))
        else:
            chosen.append(item)
    return tuple(chosen)


def shipped_file(kind: str, target: TargetIdentity, folder: Path = FOLDER) -> Path:
    """The weights of the best drafter of a kind that is shipped for `target`.

    Raises:
        ConfigError: There is none; says what is shipped.
    """
    shipped = read_shipped(folder)
    found = shipped.find(target, [kind])
    if found is None:
        known = ", ".join(f"{one.kind} for {one.target}" for one in shipped.drafters) or "none"
        raise ConfigError(
            f"no drafter of kind {kind} is shipped for {target.describe()}; shipped are: {known}",
            hint="give `source` the drafter's folder or file, or train one: slipstream train",
        )
    return folder / found.file


def _of_any_kind(
    item: ShippedConfig, target: TargetIdentity, target_bits: float, folder: Path
) -> _Chosen | None:
    found = read_shipped(folder).find(target)
    if found is None:
        log.info("no drafter is shipped for %s", target.describe())
        return None
    if target_bits < item.min_target_bits:
        log.info(
            "the %s drafter that is shipped for %s is left out: in %.1f bits, plain steps are too "
            'cheap for it (speculation.drafters: ["suffix", "shipped"] takes it all the same)',
            found.kind,
            found.target,
            target_bits,
        )
        return None
    log.info("drafting with the %s drafter that is shipped for %s", found.kind, found.target)
    return _CLASSES[found.kind](
        name=item.name,
        source=str(folder / found.file),
        num_children=item.num_children,
        max_draft_len=item.max_draft_len,
        min_score=item.min_score,
    )


def _of_its_kind(item: DraftNetConfig, target: TargetIdentity, folder: Path) -> _Chosen:
    return _CLASSES[item.kind](
        **item.model_dump(exclude={"kind", "source"}),
        source=str(shipped_file(item.kind, target, folder)),
    )
