"""What a losslessness audit runs: samplings, concurrencies, drafter sets and conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from slipstream.errors import ConfigError
from slipstream.sampling.params import SamplingParams

SAMPLINGS: Mapping[str, SamplingParams] = MappingProxyType(
    {
        "greedy": SamplingParams(temperature=0.0),
        "t0.7": SamplingParams(
            temperature=0.7,
            top_p=0.9,
            repetition_penalty=1.05,
            presence_penalty=0.1,
            frequency_penalty=0.1,
        ),
        "t1.0": SamplingParams(temperature=1.0),
        "biased": SamplingParams(
            temperature=0.7, logit_bias={token: 3.0 - token % 7 for token in range(3, 99)}
        ),
    }
)
"""Sampling parameters by name; the seed is each case's own."""

_SAMPLING_GROUPS = {"seeded": ("t0.7", "t1.0")}
_CONDITION_PARTS = ("warm", "chunked", "preempted")
COLD = "cold"
OFF = "off"
CONFIGURED = "configured"
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Condition:
    """Circumstances that must not change an answer; all false is `cold`.

    Attributes:
        is_warm: Every prompt runs twice with one cache salt, so the second finds its prefix.
        is_chunked: Steps have so few rows that prompts are computed in many chunks.
        is_preempted: Memory is taken away again and again, so running requests are preempted;
            not with a concurrency of 1, where nobody has to give way.
    """

    is_warm: bool = False
    is_chunked: bool = False
    is_preempted: bool = False

    @property
    def label(self) -> str:
        flags = (self.is_warm, self.is_chunked, self.is_preempted)
        parts = [part for part, flag in zip(_CONDITION_PARTS, flags, strict=True) if flag]
        return "+".join(parts) or COLD

    @property
    def num_waves(self) -> int:
        """How often each case runs."""
        return 2 if self.is_warm else 1


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """Who drafts.

    Attributes:
        label: `off`, `configured`, `merge` (all instances), or instance names joined by `+`.
        names: Instances that may propose; None is all that are configured.
    """

    label: str
    names: tuple[str, ...] | None = None

    @property
    def is_off(self) -> bool:
        return self.label == OFF

    @property
    def is_configured(self) -> bool:
        """Whether drafters and controller are those of the configuration, as it is served."""
        return self.label == CONFIGURED


NO_DRAFTERS = DrafterSet(OFF, ())
CONFIGURED_DRAFTERS = DrafterSet(CONFIGURED)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the audit's table."""

    sampling: str
    concurrency: int
    drafters: DrafterSet
    condition: Condition


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Everything that is run: the product of all the lists.

    Attributes:
        max_tokens: Most output tokens of a turn.
        seed: Case i draws with `seed + i`.
    """

    samplings: tuple[str, ...]
    concurrencies: tuple[int, ...]
    drafter_sets: tuple[DrafterSet, ...]
    conditions: tuple[Condition, ...]
    max_tokens: int
    seed: int = 1

    def settings(self) -> Iterator[Setting]:
        """All rows, ordered so that an engine that fits one often fits the next."""
        chunked_last = sorted(self.conditions, key=lambda condition: condition.is_chunked)
        configured_first = sorted(
            self.drafter_sets, key=lambda item: (not item.is_configured, item.is_off)
        )
        for is_configured in (True, False):
            sets = [item for item in configured_first if item.is_configured == is_configured]
            for condition, drafters, sampling in product(chunked_last, sets, self.samplings):
                for concurrency in self._concurrencies(condition):
                    yield Setting(sampling, concurrency, drafters, condition)

    def _concurrencies(self, condition: Condition) -> tuple[int, ...]:
        """A request that runs alone is never preempted."""
        least = 2 if condition.is_preempted else 1
        return tuple(number for number in self.concurrencies if number >= least)

    def params(self, sampling: str, case_index: int) -> SamplingParams:
        """Parameters of one case under one sampling."""
        return replace(SAMPLINGS[sampling], max_tokens=self.max_tokens, seed=self.seed + case_index)


def parse_samplings(text: str) -> tuple[str, ...]:
    """Names from a list such as `greedy,seeded`; `seeded` is all with a temperature."""
    names: dict[str, None] = {}
    for name in _items("--sampling", text):
        if name not in SAMPLINGS and name not in _SAMPLING_GROUPS:
            known = ", ".join((*SAMPLINGS, *_SAMPLING_GROUPS))
            raise ConfigError(f'--sampling has no "{name}"; there are {known}')
        names |= dict.fromkeys(_SAMPLING_GROUPS.get(name, (name,)))
    return tuple(names)


def parse_concurrencies(text: str) -> tuple[int, ...]:
    """Numbers from a list such as `1,8`."""
    numbers: list[int] = []
    for item in _items("--concurrency", text):
        if not item.isdecimal() or not 1 <= int(item) <= 4096:
            raise ConfigError(f'--concurrency takes numbers from 1 to 4096, got "{item}"')
        numbers.append(int(item))
    return tuple(dict.fromkeys(numbers))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Conditions from a list such as `cold,warm,chunked+preempted`."""
    return tuple(dict.fromkeys(_condition(item) for item in _items("--conditions", text)))


def parse_drafter_sets(text: str, known: Sequence[str] | None) -> tuple[DrafterSet, ...]:
    """Drafter sets from a list such as `configured,ngram,ngram+suffix,merge`.

    Args:
        known: Instances that there are; None where they are not known (the server refuses then).
    """
    return tuple(dict.fromkeys(_drafter_set(item, known) for item in _items("--drafters", text)))


def _condition(text: str) -> Condition:
    parts = text.split("+")
    if parts == [COLD]:
        return Condition()
    unknown = [part for part in parts if part not in _CONDITION_PARTS]
    if unknown:
        known = ", ".join((COLD, *_CONDITION_PARTS))
        raise ConfigError(
            f'--conditions has no "{unknown[0]}"; there are {known}, joined by + where several '
            "shall hold at once"
        )
    return Condition("warm" in parts, "chunked" in parts, "preempted" in parts)


def _drafter_set(text: str, known: Sequence[str] | None) -> DrafterSet:
    if text == OFF:
        return NO_DRAFTERS
    if text == CONFIGURED or (text == MERGE and known is None):
        return CONFIGURED_DRAFTERS
    names = tuple(known or ()) if text == MERGE else tuple(dict.fromkeys(text.split("+")))
    unknown = [name for name in names if known is not None and name not in known]
    if unknown or not names:
        there_are = ", ".join(known or ()) or "none"
        raise ConfigError(
            f'--drafters names "{unknown[0] if unknown else text}"; the instances are {there_are}',
            hint=f"also {OFF}, {CONFIGURED} and {MERGE}; + joins instances whose drafts are merged",
        )
    return DrafterSet(MERGE if text == MERGE else "+".join(names), names)


def _items(option: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ConfigError(f"{option} is empty")
    return items
