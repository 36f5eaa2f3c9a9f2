"""A whole engine over a scripted target: real scheduler, cache, sampler, verification."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from slipstream.clock import ManualClock
from slipstream.engine.admission import RequestChecker
from slipstream.engine.engine import Engine
from slipstream.engine.messages import (
    EngineInfo,
    Failed,
    PromptDone,
    Submit,
    TokenLogprob,
    Tokens,
)
from slipstream.engine.observer import EngineObserver
from slipstream.engine.queue import RequestQueue
from slipstream.engine.scheduler import Scheduler, SchedulerLimits
from slipstream.engine.step import Stages
from slipstream.engine.taps import TapBacklog
from slipstream.engine.token_logprobs import LogprobReporter
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.cache import KvCache
from slipstream.observability.engine_metrics import EngineMetrics
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.speculation.control import DraftLimit, FixedController, LengthController
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.propose import Proposer
from slipstream.speculation.verification import ExactVerification, Verification
from slipstream.tokenization.tokenizer import Tokenizer, load_tokenizer
from tests.support.scripted_target import LogitsOf, ScriptedTarget, hashed_logits
from tests.support.tiny import write_tiny_tokenizer

VOCAB_SIZE = 300


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """The byte-level tokenizer of the tiny checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_tokenizer(Path(folder), VOCAB_SIZE)
        return load_tokenizer(Path(folder))


@dataclass
class Result:
    """Everything one submission gave back."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    last: dict[int, Tokens] = field(default_factory=dict)
    events: list[Tokens] = field(default_factory=list)
    prompt: PromptDone | None = None
    failed: Failed | None = None


@dataclass
class EngineSetup:
    """Sizes of the engine under test; the defaults are roomy."""

    num_pages: int = 256
    page_size: int = 4
    max_num_requests: int = 16
    max_step_tokens: int = 64
    max_queue_len: int = 64
    max_model_len: int = 256
    high_at: float = 0.9
    starvation_s: float = 5.0
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    prefix_cache: bool = True
    max_draft_len: int = 8
    max_draft_nodes: int = 16
    kernels: KernelLibrary | None = None  # that draw; numpy does without


class EngineHarness:
    """Builds an engine and drives it to the end of all requests, checking integrity as it goes."""

    def __init__(
        self,
        drafters: Sequence[Drafter] = (),
        *,
        logits_of: LogitsOf | None = None,
        setup: EngineSetup | None = None,
        controller: LengthController | None = None,
        verification: Verification | None = None,
    ) -> None:
        setup = setup or EngineSetup()
        self.clock = ManualClock()
        self.tokenizer = tiny_tokenizer()
        self.kv = KvCache(setup.num_pages, setup.page_size, prefix_cache=setup.prefix_cache)
        self.target = ScriptedTarget(self.kv.num_slots, logits_of or hashed_logits(VOCAB_SIZE))
        sampler = Sampler(VOCAB_SIZE, self.tokenizer.eos_token_ids, setup.kernels)
        queue = RequestQueue(setup.max_queue_len, setup.starvation_s)
        limits = SchedulerLimits(setup.max_num_requests, setup.max_step_tokens, setup.high_at)
        proposer = Proposer(drafters, controller or FixedController(), self.clock)
        taps = TapBacklog(proposer.absorb)
        self.scheduler = Scheduler(limits, self.kv, queue, taps.close)
        self.metrics = EngineMetrics(self.clock)
        self.engine = Engine(
            Stages(
                scheduler=self.scheduler,
                proposer=proposer,
                taps=taps,
                runner=self.target,
                sampler=sampler,
                verification=verification or ExactVerification(),
                logprobs=LogprobReporter(sampler, self.tokenizer),
                bounds=DraftLimit(setup.max_draft_len, setup.max_draft_nodes),
                clock=self.clock,
            ),
            {"target": self.kv},
            queue,
            tokenizer=self.tokenizer,
            checker=RequestChecker(
                vocab_size=VOCAB_SIZE,
                max_model_len=setup.max_model_len,
                drafters=tuple(drafter.name for drafter in drafters),
                queue_timeout_s=setup.queue_timeout_s,
                request_timeout_s=setup.request_timeout_s,
            ),
            observer=EngineObserver(self.metrics, drafters, {}, warn_at=0.8),
            info=EngineInfo(
                model="scripted",
                vocab_size=VOCAB_SIZE,
                max_model_len=setup.max_model_len,
                fingerprint="fp_scripted",
                drafters=tuple(drafter.name for drafter in drafters),
                eos_token_ids=tuple(self.tokenizer.eos_token_ids),
                kv_tokens=setup.num_pages * setup.page_size,
                weight_bytes=0,
            ),
        )
        self.results: dict[str, Result] = {}
        self.num_preemptions = 0

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        **fields: object,
    ) -> None:
        """Queue a request; `fields` are those of `Submit`."""
        submit = Submit(request_id, tuple(prompt), params or SamplingParams())
        self.engine.submit(replace_struct(submit, fields))
        self.results[request_id] = Result()

    def step(self) -> None:
        """One step; its events go to `results`, and the integrity is checked."""
        self.clock.advance(0.01)
        for event in self.engine.step():
            result = self.results[event.request_id]  # type: ignore[union-attr]  # steps make no other
            if isinstance(event, PromptDone):
                result.prompt = event
            elif isinstance(event, Failed):
                result.failed = event
            elif isinstance(event, Tokens):
                _collect(result, event)
        self.engine.check_integrity()

    def run(self, max_steps: int = 2000, on_step: Callable[[int], None] | None = None) -> None:
        """Step until nothing is left to do."""
        for number in range(max_steps):
            if not self.engine.has_work:
                break
            if on_step is not None:
                on_step(number)
            self.step()
        assert not self.engine.has_work, f"not done after {max_steps} steps"
        usage = self.kv.usage()
        assert usage.num_leased == 0, f"pages still leased at the end: {usage}"

    def generate(
        self, prompt: Sequence[int], params: SamplingParams | None = None, **fields: object
    ) -> Result:
        """Run one request alone."""
        request_id = f"r{len(self.results)}"
        self.submit(request_id, prompt, params, **fields)
        self.run()
        return self.results[request_id]


def replace_struct(submit: Submit, fields: dict[str, object]) -> Submit:
    """`submit` with some fields replaced."""
    return msgspec.structs.replace(submit, **fields)


def _collect(result: Result, event: Tokens) -> None:
    index = event.index
    assert index not in result.last or result.last[index].finish_reason is None
    result.events.append(event)
    result.token_ids.setdefault(index, []).extend(event.token_ids)
    result.text[index] = result.text.get(index, "") + event.text
    result.logprobs.setdefault(index, []).extend(event.logprobs or ())
    result.last[index] = event
