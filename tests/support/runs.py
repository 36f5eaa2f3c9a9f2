"""Requests, drafters and comparisons for tests that specify the whole engine."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.clock import Clock
from slipstream.config.speculation import DrafterConfig, NgramConfig, SuffixConfig
from slipstream.engine.messages import SpeculationOptions, SpeculationStats
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.build import DrafterResources, build_drafter
from slipstream.speculation.control import LengthController
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelRules
from slipstream.speculation.guard import GuardedDrafter, GuardLimits
from tests.support.draft_models import disturbed, make_draft_model
from tests.support.drafters import RecordedEvents
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.scripted_target import LogitsOf, hashed_logits

Outputs = dict[tuple[str, int], list[int]]
"""Output tokens by (request, choice)."""

Make = Callable[[], list[Drafter]]


def remembered(logits_of: LogitsOf) -> LogitsOf:
    """The same model; contexts that were seen before cost nothing."""
    return functools.lru_cache(maxsize=None)(logits_of)


MODEL = remembered(hashed_logits(VOCAB_SIZE))


def _copying_logits(tokens: tuple[int, ...]) -> torch.Tensor:
    """Two tokens decide among few favourites, so that texts repeat themselves."""
    base = hashed_logits(40, memory=1, favourites=3)(tokens)
    logits = torch.full((VOCAB_SIZE,), -8.0)
    logits[100:140] = base
    return logits


COPYING = remembered(_copying_logits)
"""A model whose outputs repeat themselves: what ngram and suffix drafters are for."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=30)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=30, seed=7)
PROMPT = tuple(range(100, 120))


@dataclass(frozen=True)
class Ask:
    """One request of a test."""

    prompt: tuple[int, ...]
    params: SamplingParams = GREEDY
    n: int = 1
    salt: str = ""
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)


def tokens_of(harness: EngineHarness) -> Outputs:
    """All output so far."""
    return {
        (name, index): tokens
        for name, result in harness.results.items()
        for index, tokens in result.token_ids.items()
    }


def submit_all(harness: EngineHarness, asks: Sequence[Ask]) -> None:
    """Queue the requests as q0, q1, ..."""
    for number, ask in enumerate(asks):
        harness.submit(
            f"q{number}",
            ask.prompt,
            ask.params,
            n=ask.n,
            cache_salt=ask.salt,
            speculation=ask.speculation,
        )


def together(
    asks: Sequence[Ask],
    drafters: Sequence[Drafter] = (),
    *,
    logits_of: LogitsOf = MODEL,
    setup: EngineSetup | None = None,
    controller: LengthController | None = None,
) -> EngineHarness:
    """All requests in one engine, run to their end."""
    harness = EngineHarness(drafters, logits_of=logits_of, setup=setup, controller=controller)
    submit_all(harness, asks)
    harness.run()
    return harness


def plainly(asks: Sequence[Ask], logits_of: LogitsOf = MODEL) -> Outputs:
    """Each request alone in an engine of its own, without drafts and without prefix hits."""
    outputs: Outputs = {}
    for number, ask in enumerate(asks):
        harness = EngineHarness(logits_of=logits_of, setup=EngineSetup(prefix_cache=False))
        result = harness.generate(ask.prompt, ask.params, n=ask.n)
        outputs |= {(f"q{number}", index): ids for index, ids in result.token_ids.items()}
    return outputs


def guarded(drafter: Drafter, clock: Clock, events: RecordedEvents | None = None) -> Drafter:
    """The drafter as the engine runs it: its faults bench it."""
    return GuardedDrafter(drafter, GuardLimits(VOCAB_SIZE), clock, events or RecordedEvents())


def configured(config: DrafterConfig) -> Drafter:
    """A model-free drafter for the scripted target."""
    return build_drafter(config, DrafterResources(VOCAB_SIZE, frozenset({2}), draft_models={}))


def drafter_sets(logits_of: LogitsOf) -> Mapping[str, Make]:
    """Every drafter there is, and all of them merged."""

    def draft_model(num_children: int) -> Drafter:
        rules = DraftModelRules(num_children, 4)
        return make_draft_model(remembered(disturbed(logits_of, 1.0)), rules=rules).drafter

    def everything() -> list[Drafter]:
        ngram = configured(NgramConfig(min_n=1, max_n=3))
        return [ngram, configured(SuffixConfig(tree=True)), draft_model(2)]

    return {
        "ngram longest_earliest": lambda: [
            configured(NgramConfig(match="longest_earliest", min_n=1))
        ],
        "ngram first_leftmost": lambda: [configured(NgramConfig(match="first_leftmost", min_n=1))],
        "ngram longest_latest": lambda: [configured(NgramConfig(match="longest_latest", min_n=1))],
        "suffix chain": lambda: [configured(SuffixConfig())],
        "suffix tree": lambda: [configured(SuffixConfig(tree=True))],
        "draft_model chain": lambda: [draft_model(1)],
        "draft_model tree": lambda: [draft_model(3)],
        "all merged": everything,
    }


def stats_of(harness: EngineHarness) -> list[SpeculationStats]:
    """The counters of every finished choice."""
    all_stats = [
        last.speculation for result in harness.results.values() for last in result.last.values()
    ]
    return [stats for stats in all_stats if stats is not None]


def num_accepted(harness: EngineHarness) -> int:
    """Draft tokens kept, over all choices."""
    return sum(stats.num_accepted_tokens for stats in stats_of(harness))


def num_drafted(harness: EngineHarness) -> int:
    """Draft tokens verified, over all choices."""
    return sum(stats.num_draft_tokens for stats in stats_of(harness))


def metric(harness: EngineHarness, name: str, **labels: str) -> float:
    """A metric's value, 0 where it was never touched."""
    text = str(harness.engine.call("metrics"))
    wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    pattern = rf"^slipstream_{name}{re.escape('{' + wanted + '}') if wanted else ''} (\S+)$"
    match = re.search(pattern, text, re.M)
    return float(match[1]) if match else 0.0


def saying(prompt_len: int, output: Sequence[int], then: int = 2) -> LogitsOf:
    """A model that says `output` behind a prompt of that length, then `then` for ever (EOS)."""

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        at = len(tokens) - prompt_len
        logits = torch.zeros(VOCAB_SIZE)
        logits[output[at] if 0 <= at < len(output) else then] = 20.0
        return logits

    return logits_of
