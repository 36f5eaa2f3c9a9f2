"""Auditing an engine in this process, where every circumstance can be forced."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from slipstream.audit.counters import counter_sum
from slipstream.audit.law import Draw
from slipstream.audit.outcome import Case, Job, Outcome, RunResult, TopTwo
from slipstream.audit.plan import MERGE, NO_DRAFTERS, Condition, DrafterSet, Setting
from slipstream.audit.pressure import MemoryPressure
from slipstream.config.control import FixedControl
from slipstream.config.schema import Config
from slipstream.config.speculation import (
    DrafterConfig,
    DraftModelConfig,
    NgramConfig,
    ShippedConfig,
    SuffixConfig,
)
from slipstream.engine.llm import LLM
from slipstream.engine.messages import (
    Event,
    Failed,
    PromptDone,
    SpeculationOptions,
    SpeculationStats,
    Submit,
    TokenLogprob,
    Tokens,
)
from slipstream.errors import EngineFailureError
from slipstream.observability.catalogue import DRAFTER_FAULTS, PREEMPTIONS
from slipstream.sampling.params import SamplingParams

_CHUNKED_STEP_TOKENS = 40


def audit_drafters(config: Config, draft_source: str) -> tuple[DrafterConfig, ...]:
    """The configured drafters, and one of each kind that is not among them.

    Args:
        draft_source: Weights of the draft model that is added; `target` is the target's own.
    """
    added: tuple[DrafterConfig, ...] = (
        NgramConfig(),
        SuffixConfig(),
        DraftModelConfig(source=draft_source, num_children=2),
    )
    kinds = {item.kind for item in config.speculation.drafters}
    return (*config.speculation.drafters, *(item for item in added if item.kind not in kinds))


class EngineTarget:
    """Builds the engines that the settings need, one at a time.

    The drafter set `configured` runs with the configuration's own drafters and controller. Other
    sets run in an engine that holds all `drafters` and always drafts as far as the limits allow.

    Args:
        config: Of the model that is audited.
        drafters: See `audit_drafters`.
        load: Brings an engine into this process.
        chunked_step_tokens: Rows of a step where prompts are to be chunked.
    """

    can_preempt = True

    def __init__(
        self,
        config: Config,
        drafters: Sequence[DrafterConfig],
        *,
        load: Callable[[Config], LLM],
        chunked_step_tokens: int = _CHUNKED_STEP_TOKENS,
    ) -> None:
        self._config = _without_timeouts(config)
        self._drafters = tuple(drafters)
        self._load = load
        self._chunked_step_tokens = chunked_step_tokens
        self._key: tuple[bool, bool] | None = None
        self._llm: LLM | None = None
        self._num_requests = 0
        self._facts: dict[str, Any] = {}

    @property
    def verification(self) -> str:
        return self._config.speculation.verification.kind

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def drafter_names(self) -> tuple[str, ...]:
        """Drafters that sets may name: those that come with Slipstream only where there is one."""
        if not any(isinstance(item, ShippedConfig) for item in self._drafters):
            return tuple(item.name for item in self._drafters)
        return self._engine_for(DrafterSet(MERGE), Condition()).engine.info.drafters

    def run(self, setting: Setting, jobs: Sequence[Job], on_done: Callable[[], None]) -> RunResult:
        llm = self._engine_for(setting.drafters, setting.condition)
        before = _counts(llm)
        pressure = MemoryPressure(llm.engine.kv) if setting.condition.is_preempted else None
        batch = _Batch(llm, setting, pressure)
        try:
            for job in jobs:
                self._num_requests += 1
                batch.add(f"audit-{self._num_requests}", job, _tokens(llm, job.case))
            outcomes = batch.run(on_done)
        finally:
            llm.engine.cancel_all()
            if pressure is not None:
                pressure.release()
        try:
            llm.engine.check_integrity()
        except AssertionError as error:
            raise EngineFailureError(f"the engine lost count of its memory: {error}") from error
        num_preemptions, num_faults = (
            count - earlier for count, earlier in zip(_counts(llm), before, strict=True)
        )
        return RunResult(tuple(outcomes), num_preemptions, num_faults)

    def top_two(self, token_ids: Sequence[int]) -> TopTwo:
        llm = self._llm or self._engine_for(NO_DRAFTERS, Condition())
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=True, top_logprobs=2)
        off = SpeculationOptions(enabled=False)
        generation = llm.generate([list(token_ids)], params, speculation=off, cache_salt="top-two")
        top = generation[0].choices[0].logprobs[0].top
        return TopTwo(tuple(item.token_id for item in top), top[0].logprob - top[1].logprob)

    def token_text(self, token: int) -> str:
        return "" if self._llm is None else self._llm.tokenizer.token_text(token)

    def _engine_for(self, drafters: DrafterSet, condition: Condition) -> LLM:
        is_configured = drafters.is_configured
        if drafters.is_off:  # any engine will do
            is_configured = self._key is None or self._key[0]
        key = (is_configured, condition.is_chunked)
        if self._llm is None or self._key != key:
            self._llm = None  # the old engine's memory is needed for the new one
            self._llm = self._load(self._config_for(*key))
            self._key = key
            info = self._llm.engine.info
            self._facts |= {
                "model": info.model,
                "fingerprint": info.fingerprint,
                "numerics": info.details.get("numerics", {}),
                "drafters": [_description(item) for item in self._drafters],
                "verification": self.verification,
            }
        return self._llm

    def _config_for(self, is_configured: bool, is_chunked: bool) -> Config:
        config = self._config
        if not is_configured:
            speculation = config.speculation.model_copy(
                update={"drafters": self._drafters, "controller": FixedControl()}
            )
            config = config.model_copy(update={"speculation": speculation})
        if is_chunked:
            scheduler = config.scheduler.model_copy(
                update={"max_step_tokens": self._chunked_step_tokens}
            )
            config = config.model_copy(update={"scheduler": scheduler})
        return config


@dataclass(slots=True)
class _Running:
    """One job in the engine."""

    index: int
    submit: Submit
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    num_cached_tokens: int = 0
    draws: list[Draw] = field(default_factory=list)


class _Batch:
    """Jobs of one run, fed to the engine as earlier ones finish."""

    def __init__(self, llm: LLM, setting: Setting, pressure: MemoryPressure | None) -> None:
        self._engine = llm.engine
        self._concurrency = setting.concurrency
        self._pressure = pressure
        names = None if setting.drafters.is_off else setting.drafters.names
        self._options = SpeculationOptions(
            enabled=False if setting.drafters.is_off else None, drafters=names
        )
        self._waiting: deque[_Running] = deque()
        self._live: dict[str, _Running] = {}
        self._outcomes: dict[int, Outcome] = {}

    def add(self, request_id: str, job: Job, tokens: Sequence[int]) -> None:
        submit = Submit(
            request_id=request_id,
            prompt=tuple(tokens),
            params=job.params,
            speculation=self._options,
            cache_salt=job.salt,
        )
        self._waiting.append(_Running(len(self._waiting), submit))

    def run(self, on_done: Callable[[], None]) -> list[Outcome]:
        num_jobs = len(self._waiting)
        while self._waiting or self._live:
            while self._waiting and len(self._live) < self._concurrency:
                running = self._waiting.popleft()
                self._engine.submit(running.submit)
                self._live[running.submit.request_id] = running
            for event in self._engine.step():
                if self._take(event):
                    on_done()
            if self._pressure is not None:
                self._pressure.update(
                    [f"{name}#0" for name, item in self._live.items() if item.token_ids]
                )
        return [self._outcomes[index] for index in range(num_jobs)]

    def _take(self, event: Event) -> bool:
        """Add an event to its job; whether the job is finished."""
        if isinstance(event, Failed):
            raise EngineFailureError(f"{event.error}: {event.message}", hint=event.hint)
        assert isinstance(event, PromptDone | Tokens), f"unexpected {event}"
        running = self._live[event.request_id]
        if isinstance(event, PromptDone):
            running.num_cached_tokens = event.num_cached_tokens
            return False
        running.token_ids.extend(event.token_ids)
        running.text += event.text
        running.draws.extend(map(_draw, event.logprobs or ()))
        if event.finish_reason is None:
            return False
        del self._live[event.request_id]
        stats = event.speculation or SpeculationStats()
        self._outcomes[running.index] = Outcome(
            prompt_token_ids=running.submit.prompt,
            token_ids=tuple(running.token_ids),
            text=running.text,
            finish_reason=event.finish_reason,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            num_cached_tokens=running.num_cached_tokens,
            fingerprint=self._engine.info.fingerprint,
            draws=tuple(running.draws),
        )
        return True


def _draw(token: TokenLogprob) -> Draw:
    top_ids = [item.token_id for item in token.top]
    place = top_ids.index(token.token_id) if token.token_id in top_ids else None
    return Draw(place, tuple(math.exp(item.logprob) for item in token.top))


def _description(drafter: DrafterConfig) -> dict[str, Any]:
    """A drafter's settings; of a path to weights only the last part, which says enough."""
    settings: dict[str, Any] = drafter.model_dump(mode="json")
    if "source" in settings:
        settings["source"] = PurePath(settings["source"]).name
    return settings


def _counts(llm: LLM) -> tuple[int, int]:
    """Preemptions and drafter faults since the engine's start."""
    text = llm.engine.observer.metrics.exposition().decode()
    return counter_sum(text, PREEMPTIONS), counter_sum(text, DRAFTER_FAULTS)


def _tokens(llm: LLM, case: Case) -> list[int]:
    if case.text is not None:
        return llm.tokenizer.encode(case.text)
    return llm.render(case.messages)


def _without_timeouts(config: Config) -> Config:
    """An audit may take as long as it takes."""
    update = {"queue_timeout_s": None, "request_timeout_s": None}
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update=update)})
