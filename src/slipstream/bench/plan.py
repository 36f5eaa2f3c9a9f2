"""What a benchmark runs, and in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from slipstream.bench.results import Mode
from slipstream.errors import ConfigError
from slipstream.sampling.params import SamplingParams

SAMPLINGS: Mapping[str, SamplingParams] = MappingProxyType(
    {
        "greedy": SamplingParams(temperature=0.0),
        "seeded": SamplingParams(temperature=0.7, top_p=0.95),
    }
)
"""Sampling parameters by name; `t1.0` and the like are a temperature and no filter."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Everything that is run: groups of prompts x samplings x rounds, each in every mode.

    Attributes:
        max_tokens: Most output tokens of a turn.
        concurrency: Prompts of a group, which run together.
        has_control: Speculation off runs twice; the second time is called `control`.
        is_memory_shared: All prompts of one mode, sampling and round have one cache salt, so that
            prefix cache and drafter memory learn across prompts; otherwise each run has its own.
        seed: Prompt i draws with `seed + i`.
        nonce: Part of every salt, so that two benchmarks on one server share nothing.
    """

    samplings: tuple[str, ...] = ("greedy", "seeded")
    max_tokens: int = 128
    concurrency: int = 1
    rounds: int = 1
    has_control: bool = False
    is_memory_shared: bool = False
    seed: int = 1
    nonce: str = "0"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is compared."""
        return ("off", "on", "control") if self.has_control else ("off", "on")

    def order(self, turn: int) -> tuple[Mode, ...]:
        """Modes rotated by `turn`, so that each comes first, second, ... equally often."""
        start = turn % len(self.modes)
        return self.modes[start:] + self.modes[:start]

    def params(self, sampling: str, prompt_index: int) -> SamplingParams:
        """Parameters of one prompt under one sampling."""
        return replace(
            _sampling(sampling), max_tokens=self.max_tokens, seed=self.seed + prompt_index
        )

    def salt(self, mode: Mode, sampling: str, round_index: int, prompt_index: int) -> str:
        """Of one run. A prompt never meets what it left behind in another run of its own."""
        scope = f"bench-{self.nonce}-{mode}-{sampling}-{round_index}"
        return scope if self.is_memory_shared else f"{scope}-{prompt_index}"


def parse_samplings(text: str) -> tuple[str, ...]:
    """Names from a list such as `greedy,seeded,t1.0`.

    Raises:
        ConfigError: A name is unknown, or there is none.
    """
    names = tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not names:
        raise ConfigError("--sampling is empty", hint="for example --sampling greedy,seeded")
    for name in names:
        _sampling(name)
    return names


def _sampling(name: str) -> SamplingParams:
    if name in SAMPLINGS:
        return SAMPLINGS[name]
    try:
        temperature = float(name.removeprefix("t")) if name.startswith("t") else math.nan
    except ValueError:
        temperature = math.nan
    if not 0.0 <= temperature <= 100.0:
        raise ConfigError(
            f'--sampling has no "{name}"; there are {", ".join(SAMPLINGS)}, and temperatures from '
            "0 to 100 such as t1.0"
        )
    return SamplingParams(temperature=temperature)
