"""Engines in simulated time: a pass takes what its rows cost, drafting what it is said to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.clock import ManualClock
from slipstream.engine.messages import SpeculationOptions, Tokens
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.drafter import DraftContext, Drafter, DrafterNeeds, Observation
from slipstream.speculation.tree import DraftTree
from tests.support.drafters import Truth, true_outputs_by_prompt
from tests.support.engine import EngineHarness, EngineSetup
from tests.support.runs import MODEL

Cost = Callable[[int], float]
"""Seconds of a pass by its rows."""

MEMORY_BOUND: Cost = lambda rows: 1.0 + 0.001 * rows  # noqa: E731 - a curve, named
BALANCED: Cost = lambda rows: 1.0 + 0.05 * rows  # noqa: E731
COMPUTE_BOUND: Cost = lambda rows: 0.1 + 0.1 * rows  # noqa: E731
REGIMES = {"memory": MEMORY_BOUND, "balanced": BALANCED, "compute": COMPUTE_BOUND}


class SlowDrafter:
    """Another drafter that takes its time.

    Args:
        seconds: Time that drafting takes for each request that is asked.
    """

    def __init__(self, inner: Drafter, clock: ManualClock, seconds: float) -> None:
        self._inner = inner
        self._clock = clock
        self._seconds = seconds

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def needs(self) -> DrafterNeeds:
        return self._inner.needs

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        self._clock.advance(self._seconds * len(contexts))
        return self._inner.propose(contexts)

    def observe(self, observations: Sequence[Observation]) -> None:
        self._inner.observe(observations)

    def release(self, request_ids: Sequence[str]) -> None:
        self._inner.release(request_ids)

    def memory_bytes(self) -> int:
        return self._inner.memory_bytes()


class SimulatedEngine(EngineHarness):
    """An engine whose clock moves by the cost of its passes, with the cost controller at work.

    Args:
        cost: Seconds of a pass by its rows; the controller's profile is exact.
        drafter: None decodes plainly.
        draft_s: Seconds of drafting per request asked.
        max_num_requests: Most running requests.
    """

    def __init__(
        self,
        cost: Cost,
        drafter: Drafter | None = None,
        *,
        draft_s: float = 0.0,
        max_num_requests: int = 32,
    ) -> None:
        profile = {rows: cost(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)}
        self.controller = CostController(
            StepCost(profile), decay=0.9, probe_interval=32, min_gain=1.05
        )
        super().__init__(
            [],
            logits_of=MODEL,
            controller=self.controller,
            setup=EngineSetup(
                num_pages=4096,
                max_num_requests=max_num_requests,
                max_step_tokens=512,
                max_queue_len=1000,
            ),
        )
        if drafter is not None:
            slow = SlowDrafter(drafter, self.clock, draft_s)
            self.engine._stages.proposer.drafters = (slow,)
        self.target.before_forward = lambda batch: self.clock.advance(cost(len(batch.tokens)))

    def step(self) -> None:
        for event in self.engine.step():
            if isinstance(event, Tokens):
                tokens = self.results[event.request_id].token_ids
                tokens.setdefault(event.index, []).extend(event.token_ids)

    def serve(
        self, num_requests: int, num_tokens: int, *, num_opted_out: int = 0, name: str = "q"
    ) -> float:
        """Seconds until as many requests are answered, which all arrive at once."""
        started_s = self.clock.now()
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        for number in range(num_requests):
            options = SpeculationOptions(enabled=False if number < num_opted_out else None)
            self.submit(f"{name}{number}", prompt_of(number), params, speculation=options)
        self.run(max_steps=100_000)
        return self.clock.now() - started_s


def prompt_of(number: int) -> tuple[int, ...]:
    """The prompt of the simulation's n-th request."""
    return (10 + number % 250, 20, 30)


def truth_of(engine: SimulatedEngine) -> Truth:
    """What the engine has answered, by prompt."""
    outputs = {
        prompt_of(int(name.lstrip("q"))): result.token_ids[0]
        for name, result in engine.results.items()
    }
    return true_outputs_by_prompt(outputs)
