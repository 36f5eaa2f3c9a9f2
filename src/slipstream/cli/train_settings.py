"""The flags of `slipstream train fit`, and the settings of a run that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipstream.cli.training import choose_taps, parse_layers
from slipstream.errors import ConfigError
from slipstream.training.dataset import Dataset, Split
from slipstream.training.draft_vocab import unused_token
from slipstream.training.families.family import AnyFamily
from slipstream.training.families.table import FAMILIES
from slipstream.training.given import GivenNet
from slipstream.training.packing import Piece, arrange, cut_answers
from slipstream.training.session import TrainingTarget
from slipstream.training.settings import FitSettings, LossSettings, NetSettings, RunSettings

_USUAL_FAMILY, _USUAL_VOCAB = "dspark", 8192
_RATES = {"muon": 8e-3, "adamw": 1e-3}


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Folders of a run.

    Attributes:
        data: Answers.
        out: What is made.
        cache: Features; None asks the target for them.
        start: A net with whose weights the run starts: a path, a hub id, or a shipped drafter's
            name.
    """

    data: Path
    out: Path
    cache: Path | None
    start: str | None = None


@dataclass(frozen=True, slots=True)
class NetOptions:
    """Flags that become `NetSettings`; None is not given."""

    family: str | None
    taps: str | None
    mask_token: int | None
    train_head: bool | None
    num_layers: int | None
    draft_len: int | None
    draft_vocab: int | None
    intermediate: int | None
    markov_rank: int | None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The flags of the command; None is not given.

    Attributes:
        losses: `PART=SCALE`, which differ from the family's.
        course: Fields of `FitSettings` that are flags of their own.
    """

    files: RunFiles
    net: NetOptions
    epochs: float
    num_steps: int | None
    learning_rate: float | None
    losses: tuple[str, ...]
    course: Mapping[str, Any]  # Any: values of different types
    checkpoint_every: int
    num_held_out: int


def choose_settings(
    target: TrainingTarget, dataset: Dataset, options: FitOptions, given: GivenNet | None
) -> RunSettings:
    """Settings of a run, with defaults that depend on target and data.

    Args:
        given: The net that it starts with.
    Raises:
        ConfigError: A flag's value cannot be used.
    """
    _require_finite(options)
    known = given.settings.net.family if given else None
    named = options.net.family or known or _USUAL_FAMILY
    family = next((item for item in FAMILIES.values() if item.name == named), None)
    if family is None:
        raise ConfigError(
            f'--family must be one of {", ".join(FAMILIES)}, got "{named}"',
            hint="docs/guides/training.md says which is for what; dspark is the default",
        )
    if given and named != known:
        raise ConfigError(
            f"the net in {given.name} is of family {known}, and --family says {named}",
            hint=f"say --family {known} or leave it out, or start from another net",
        )
    try:
        net = _choose_net(family, target, dataset, options, given)
        rate = options.learning_rate or _RATES.get(options.course["optimiser"], 1.0)
        fields = {"num_steps": options.num_steps or 1, "learning_rate": rate, **options.course}
        course = FitSettings.model_validate(fields)
        losses = LossSettings.model_validate(
            family.losses.model_dump() | dict(map(_part, options.losses))
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"{first['loc'][0]} cannot be {first['input']}: {first['msg']}",
            hint="see `slipstream train fit --help`",
        ) from error
    if options.num_steps is None:
        packs = arrange(pieces_of(dataset, "train", course), course.pack_len, 0)
        num_steps = max(1, math.ceil(options.epochs * len(packs) / course.step_packs))
        course = course.model_copy(update={"num_steps": num_steps})
    return RunSettings(net=net, losses=losses, fit=course)


def _require_finite(options: FitOptions) -> None:
    """Refuse infinity and what is no number, which ranges of flags let pass."""
    scales = [(f"--loss {name}", scale) for name, scale in map(_part, options.losses)]
    numbers: list[tuple[str, Any]] = [  # Any: as in `course`, or a text
        ("--epochs", options.epochs),
        ("--learning-rate", options.learning_rate),
        ("--repeat-weight", options.course["repeat_weight"]),
        *scales,
    ]
    for name, value in numbers:
        try:
            is_usable = value is None or math.isfinite(float(value))
        except ValueError:
            continue  # a scale that is no number at all is refused by its name
        if not is_usable:
            raise ConfigError(
                f"{name} must be a finite number, got {value}",
                hint="leave it out for the usual value; see `slipstream train fit --help`",
            )


def _part(text: str) -> tuple[str, str]:
    name, equals, scale = text.partition("=")
    if not equals:
        raise ConfigError(f'--loss takes PART=SCALE, got "{text}"', hint="such as --loss label=1")
    return name, scale


def _choose_net(
    family: AnyFamily,
    target: TrainingTarget,
    dataset: Dataset,
    options: FitOptions,
    given: GivenNet | None,
) -> NetSettings:
    flags = options.net
    _require_in_vocabulary(flags, target.identity.vocab_size)
    asked = {
        "num_layers": flags.num_layers,
        "tap_layer_ids": None if flags.taps is None else parse_layers(flags.taps),
        "max_draft_len": flags.draft_len,
        "draft_vocab_size": flags.draft_vocab,
        "intermediate_size": flags.intermediate,
        "mask_token_id": flags.mask_token,
        "trains_head": flags.train_head,
        "markov_rank": flags.markov_rank,
    }
    said = {name: value for name, value in asked.items() if value is not None}
    usual = (
        given.settings.net.model_dump()
        if given
        else _usual_net(family, target, options.files.cache)
    )
    chosen = usual | said
    if "mask_token_id" not in chosen:
        chosen["mask_token_id"] = unused_token(dataset.answers, target.identity.vocab_size)
    return NetSettings.model_validate(chosen)


def _require_in_vocabulary(flags: NetOptions, vocab_size: int) -> None:
    """Refuse what is asked for and is not within the target's vocabulary."""
    if flags.draft_vocab is not None and flags.draft_vocab > vocab_size:
        raise ConfigError(
            f"--draft-vocab must be 1 to {vocab_size}, the target's vocabulary; got "
            f"{flags.draft_vocab}",
            hint=f"{vocab_size} is a drafter that knows every token; leave it out for "
            f"{min(_USUAL_VOCAB, vocab_size)}",
        )
    if flags.mask_token is not None and flags.mask_token >= vocab_size:
        raise ConfigError(
            f"--mask-token must be 0 to {vocab_size - 1}, a token of the target's vocabulary; got "
            f"{flags.mask_token}",
            hint="leave it out for the lowest token that the data never uses",
        )


def _usual_net(
    family: AnyFamily, target: TrainingTarget, cache: Path | None
) -> dict[str, Any]:  # Any: setting values
    """What a new net is like where no flag says otherwise, but for its mask."""
    hparams = target.loaded.model.hparams
    return {
        "family": family.name,
        "num_layers": family.num_layers,
        "tap_layer_ids": choose_taps(None, cache, family.tap_layer_ids(hparams.num_layers)),
        "max_draft_len": family.max_draft_len,
        "draft_vocab_size": min(_USUAL_VOCAB, hparams.vocab_size),
        "intermediate_size": hparams.intermediate_size,
        "trains_head": True,
    }


def pieces_of(dataset: Dataset, side: Split, settings: FitSettings) -> list[Piece]:
    """The answers of one side, cut to the length of a pack."""
    return cut_answers(dataset.answers, dataset.indices(side), settings.pack_len)
