"""Runs real steps of a real engine, and takes their time apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.bench.step_plan import StepCase, StepRunPlan
from slipstream.clock import Clock
from slipstream.engine.engine import Engine
from slipstream.engine.messages import Event, Failed, SpeculationOptions, Submit, Tokens
from slipstream.engine.step import StepReport
from slipstream.errors import ConfigError, EngineFailureError
from slipstream.execution.runner import Runner
from slipstream.kernels.structs import STAGES
from slipstream.models.native_decoder import NativeDecoder
from slipstream.sampling.params import SamplingParams

WARM_STEPS = 2
_PLAIN = SpeculationOptions(enabled=False)


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step.

    Attributes:
        wall_s: From the call of the engine's step to its events.
        draft_s, target_s, sample_s, commit_s: The step's own account, see `StepReport`.
        stage_s: Seconds by stage inside the native pass; empty where torch runs it.
        kv_tokens: Tokens whose keys and values the pass reads, each request's by itself.
    """

    wall_s: float
    draft_s: float
    target_s: float
    sample_s: float
    commit_s: float
    stage_s: Mapping[str, float]
    kv_tokens: tuple[int, ...]


class StepMeter:
    """Drives an engine that nobody else uses.

    Args:
        engine: With a `FillerDrafter`.
        plan: Only `context_len`, `num_steps`, `seed` and `temperature` are read here.
        page_size: Tokens of a page of the cache.
    Raises:
        ConfigError: The engine has no room for a case.
    """

    def __init__(self, engine: Engine, plan: StepRunPlan, page_size: int, clock: Clock) -> None:
        self._engine = engine
        self._plan = plan
        self._clock = clock
        self._rng = np.random.default_rng(plan.seed)
        self._aligned_len = max(plan.context_len // page_size, 1) * page_size
        self._num_requests = 0
        self._lengths: dict[str, int] = {}
        self._begun: set[str] = set()
        self._stage_ns = np.zeros(len(STAGES), np.int64)
        assert isinstance(engine.target, Runner)
        model = engine.target.model
        self._is_traced = isinstance(model, NativeDecoder)
        if isinstance(model, NativeDecoder):
            model.trace_into(self._stage_ns)
        for case in plan.cases:
            self._check_room(case)

    def measure(self, case: StepCase) -> list[StepSample]:
        """Steps of one case, each with exactly its rows."""
        try:
            if case.shape == "prompt":
                self._measure_chunk(case)
                return [self._measure_chunk(case) for _ in range(self._plan.num_steps)]
            return self._measure_decoding(case)
        finally:
            self._drop_all()

    def _measure_decoding(self, case: StepCase) -> list[StepSample]:
        num_nodes = case.num_rows - 1 if case.shape == "draft" else 0
        options = _PLAIN
        if num_nodes:
            options = SpeculationOptions(max_draft_len=num_nodes, max_draft_nodes=num_nodes)
        for number in range(case.num_requests):
            self._submit(self._context(number, self._plan.context_len), options)
        self._finish_prompts()
        for _ in range(WARM_STEPS):
            self._take(self._engine.step())
        return [self._sample(case, num_nodes) for _ in range(self._plan.num_steps)]

    def _measure_chunk(self, case: StepCase) -> StepSample:
        """One chunk of new tokens behind a prefix that another request left in the cache."""
        # Otherwise each chunk would be the first to touch its pages, which the system then makes.
        self._engine.call("reset_prefix_cache")
        prefix = self._context(0, self._aligned_len)
        self._submit((*prefix, *self._draw(1)), _PLAIN)
        self._finish_prompts()
        self._drop_all()
        self._submit((*prefix, *self._draw(case.num_rows)), _PLAIN)
        return self._sample(case, 0)

    def _sample(self, case: StepCase, num_nodes: int) -> StepSample:
        self._stage_ns[:] = 0
        kv_tokens = tuple(length + num_nodes for length in self._lengths.values())
        started_s = self._clock.now()
        events = self._engine.step()
        wall_s = self._clock.now() - started_s
        self._take(events)
        report = self._engine.last_report
        assert isinstance(report, StepReport)
        if report.num_rows != case.num_rows:
            raise EngineFailureError(
                f"a step was to have {case.num_rows} rows and had {report.num_rows}; its time "
                "would be another's"
            )
        stages = zip(STAGES, (self._stage_ns * 1e-9).tolist(), strict=True)
        return StepSample(
            wall_s=wall_s,
            draft_s=report.draft_s,
            target_s=report.target_s,
            sample_s=report.sample_s,
            commit_s=report.commit_s,
            stage_s=dict(stages) if self._is_traced else {},
            kv_tokens=kv_tokens,
        )

    def _finish_prompts(self) -> None:
        while len(self._begun) < len(self._lengths):
            self._take(self._engine.step())

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Failed):
                raise EngineFailureError(f"a request of the benchmark failed: {event.message}")
            if isinstance(event, Tokens):
                self._begun.add(event.request_id)
                self._lengths[event.request_id] += len(event.token_ids)

    def _submit(self, prompt: Sequence[int], options: SpeculationOptions) -> None:
        self._num_requests += 1
        request_id = f"bench-{self._num_requests}"
        params = SamplingParams(
            temperature=self._plan.temperature,
            max_tokens=self._engine.info.max_model_len,
            ignore_eos=True,
            seed=self._plan.seed + self._num_requests,
        )
        self._engine.submit(Submit(request_id, tuple(prompt), params, speculation=options))
        self._lengths[request_id] = len(prompt)

    def _drop_all(self) -> None:
        self._engine.cancel_all()
        self._lengths.clear()
        self._begun.clear()

    def _context(self, number: int, length: int) -> tuple[int, ...]:
        """Tokens of the request of this number, the same in every round."""
        return _tokens(
            np.random.default_rng((self._plan.seed, number)), length, self._engine.info.vocab_size
        )

    def _draw(self, length: int) -> tuple[int, ...]:
        """Tokens that no cache knows."""
        return _tokens(self._rng, length, self._engine.info.vocab_size)

    def _check_room(self, case: StepCase) -> None:
        info, plan = self._engine.info, self._plan
        # While the prompts of many requests pass, the first ones already write.
        num_steps = 1 + WARM_STEPS + plan.num_steps + case.num_requests
        length = plan.context_len + case.num_rows // case.num_requests + num_steps
        if length > info.max_model_len:
            raise ConfigError(
                f"{plan.context_len} tokens of context, {case.num_rows} rows and {num_steps} steps "
                f"need {length} tokens; the model takes {info.max_model_len}",
                hint="lower --context-len, --rows or --steps",
            )
        if case.num_requests * length > info.kv_tokens:
            raise ConfigError(
                f"{case.num_requests} requests of {length} tokens do not fit into the key/value "
                f"cache of {info.kv_tokens} tokens",
                hint="raise memory.kv_bytes or memory.utilization, or lower --rows",
            )


def _tokens(rng: np.random.Generator, length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, vocab_size, length).tolist())
