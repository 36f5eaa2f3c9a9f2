"""The interleaved run: every group of prompts in every mode before the next group begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from slipstream.bench.plan import BenchPlan
from slipstream.bench.prompts import Prompt, group_prompts
from slipstream.bench.results import GroupRun, Measurement, Mode
from slipstream.bench.target import BenchTarget, Job

_WARM_UP_TOKENS = 16


@dataclass(slots=True)
class Measured:
    """What came out of a run.

    Attributes:
        refusals: Prompt id -> why it was left out.
        is_complete: False if the run was interrupted; what was measured until then counts.
    """

    measurements: list[Measurement] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True


def num_measurements(plan: BenchPlan, prompts: Sequence[Prompt]) -> int:
    """How many paired observations `measure` makes at most."""
    groups = group_prompts(prompts, plan.concurrency)
    return len(groups) * len(plan.samplings) * plan.rounds


def measure(
    target: BenchTarget,
    plan: BenchPlan,
    prompts: Sequence[Prompt],
    on_done: Callable[[], None] = lambda: None,
) -> Measured:
    """Run the whole plan; an interrupt from the keyboard ends it early.

    Args:
        on_done: Called after each group, sampling and round.
    """
    measured = Measured()
    run = _Run(target, plan, prompts, measured)
    try:
        run.warm_up()
        for round_index in range(plan.rounds):
            for sampling_index, sampling in enumerate(plan.samplings):
                for unit, group in enumerate(group_prompts(prompts, plan.concurrency)):
                    turn = round_index + sampling_index + unit
                    run.group(unit, group, sampling, round_index, turn)
                    on_done()
    except KeyboardInterrupt:
        measured.is_complete = False
    return measured


class _Run:
    """One benchmark under way."""

    def __init__(
        self, target: BenchTarget, plan: BenchPlan, prompts: Sequence[Prompt], measured: Measured
    ) -> None:
        self._target = target
        self._plan = plan
        self._prompts = prompts
        self._measured = measured

    def warm_up(self) -> None:
        """A short answer in both modes, so that the first measured one is not the very first."""
        for mode in ("off", "on"):
            num_tokens = min(_WARM_UP_TOKENS, self._plan.max_tokens)
            params = replace(self._plan.params(self._plan.samplings[0], 0), max_tokens=num_tokens)
            job = Job(self._prompts[0], params, f"bench-{self._plan.nonce}-warm-up-{mode}")
            self._target.run([job], is_drafting=mode == "on")

    def group(
        self, unit: int, group: Sequence[int], sampling: str, round_index: int, turn: int
    ) -> None:
        """Measure one group; what is refused in one mode is left out of all."""
        refusals = self._measured.refusals
        members = [index for index in group if self._prompts[index].prompt_id not in refusals]
        if not members:
            return
        order = self._plan.order(turn)
        runs = {mode: self._run(mode, members, sampling, round_index) for mode in order}
        for run in runs.values():
            self._note_refusals(members, run)
        prompts = [self._prompts[index] for index in members]
        is_kept = [prompt.prompt_id not in refusals for prompt in prompts]
        if any(is_kept):
            self._measured.measurements.append(
                Measurement(
                    unit=unit,
                    category=prompts[0].category,
                    sampling=sampling,
                    round_index=round_index,
                    prompt_ids=tuple(item.prompt_id for item in compress(prompts, is_kept)),
                    order=order,
                    runs={
                        mode: replace(run, answers=tuple(compress(run.answers, is_kept)))
                        for mode, run in runs.items()
                    },
                )
            )

    def _run(self, mode: Mode, members: Sequence[int], sampling: str, round_index: int) -> GroupRun:
        plan = self._plan
        jobs = [
            Job(
                prompt=self._prompts[index],
                params=plan.params(sampling, index),
                salt=plan.salt(mode, sampling, round_index, index),
            )
            for index in members
        ]
        return self._target.run(jobs, is_drafting=mode == "on")

    def _note_refusals(self, members: Sequence[int], run: GroupRun) -> None:
        for index, answer in zip(members, run.answers, strict=True):
            if answer.refusal is not None:
                self._measured.refusals[self._prompts[index].prompt_id] = answer.refusal
