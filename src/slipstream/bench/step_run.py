"""One run of `slipstream bench step`, and its JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from slipstream.bench.bandwidth import BandwidthMeter
from slipstream.bench.engine_facts import engine_facts
from slipstream.bench.filler import FillerDrafter
from slipstream.bench.provenance import Provenance
from slipstream.bench.step_costs import StepCosts, step_costs, weight_bytes
from slipstream.bench.step_measure import StepMeter, StepSample
from slipstream.bench.step_plan import StepCase, StepRunPlan, step_config
from slipstream.clock import Clock
from slipstream.config.schema import Config
from slipstream.engine.build import build_engine
from slipstream.execution.runner import Runner
from slipstream.kernels.library import open_kernels

FORMAT = 1
KIND = "slipstream bench step"


@dataclass(frozen=True, slots=True)
class StepRun:
    """Everything that a run says.

    Attributes:
        facts: Of the engine: model, fingerprint, kernels, ...
        bandwidths: Bytes per second of each read of a buffer of the weights' size; empty where
            the native kernels are not there to read it.
    """

    provenance: Provenance
    facts: Mapping[str, Any]  # Any: JSON values
    plan: StepRunPlan
    bandwidths: tuple[float, ...]
    costs: tuple[StepCosts, ...]

    @property
    def bytes_per_s(self) -> float | None:
        """Median of the reads."""
        return median(self.bandwidths) if self.bandwidths else None


def run_steps(
    config: Config,
    plan: StepRunPlan,
    provenance: Provenance,
    clock: Clock,
    on_round: Callable[[], None] = lambda: None,
) -> StepRun:
    """Load the model into an engine and measure.

    Args:
        on_round: Called after each round.
    Raises:
        SlipstreamError: It cannot be loaded, or has no room for a case.
    """
    config = step_config(config, plan)
    engine = build_engine(config, clock, [FillerDrafter()])
    runner = engine.target
    assert isinstance(runner, Runner)
    meter = StepMeter(engine, plan, config.memory.page_size, clock)
    kernels = open_kernels()
    memory = None if kernels is None else BandwidthMeter(kernels, weight_bytes(runner)[0], clock)
    samples: dict[StepCase, list[StepSample]] = {case: [] for case in plan.cases}
    bandwidths: list[float] = []
    for _ in range(plan.num_rounds):
        if memory is not None:
            bandwidths += memory.read()
        for case, of_case in samples.items():
            of_case += meter.measure(case)
        on_round()
    bytes_per_s = median(bandwidths) if bandwidths else None
    sections = {"model", "memory", "scheduler", "engine"}
    return StepRun(
        provenance=provenance,
        facts=engine_facts(engine) | {"config": config.model_dump(mode="json", include=sections)},
        plan=plan,
        bandwidths=tuple(bandwidths),
        costs=tuple(
            step_costs(case, of_case, runner, bytes_per_s) for case, of_case in samples.items()
        ),
    )


def as_json(run: StepRun) -> dict[str, Any]:  # Any: JSON values
    """The run as JSON values."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "provenance": asdict(run.provenance),
        "target": dict(run.facts),
        "plan": asdict(run.plan),
        "bandwidth": {"bytes_per_s": run.bytes_per_s, "reads": run.bandwidths},
        "steps": [asdict(costs) for costs in run.costs],
    }
