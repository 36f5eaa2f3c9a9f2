"""An audit target that answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.audit.outcome import Job, Outcome, RunResult, TopTwo
from slipstream.audit.plan import Setting
from slipstream.errors import InvalidRequestError

Change = Callable[[Setting, Job, Outcome], Outcome]


@dataclass
class FakeTarget:
    """Every prompt's answer is its seed, three times; `change` may spoil it.

    `runs` holds what was asked for; a message "refuse" is refused.
    """

    change: Change = lambda setting, job, outcome: outcome
    can_preempt: bool = True
    verification: str = "exact"
    runs: list[tuple[Setting, list[Job]]] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"model": "fake"}

    def run(self, setting: Setting, jobs: Sequence[Job], on_done: Callable[[], None]) -> RunResult:
        self.runs.append((setting, list(jobs)))
        outcomes = []
        for job in jobs:
            if any(message.get("content") == "refuse" for message in job.case.messages):
                raise InvalidRequestError("too long")
            outcomes.append(self.change(setting, job, self._outcome(setting, job)))
            on_done()
        return RunResult(tuple(outcomes), 1 if setting.condition.is_preempted else 0, 0)

    def top_two(self, token_ids: Sequence[int]) -> TopTwo:
        self.asked.append(tuple(token_ids))
        return TopTwo((3, 4), 0.125)

    def token_text(self, token: int) -> str:
        return f"<{token}>"

    def _outcome(self, setting: Setting, job: Job) -> Outcome:
        is_off = setting.drafters.is_off
        return Outcome(
            prompt_token_ids=(1, len(job.case.messages)),
            token_ids=(job.params.seed,) * 3,
            text=f"answer {job.params.seed}",
            finish_reason="length",
            num_draft_tokens=0 if is_off else 4,
            num_accepted_tokens=0 if is_off else 2,
            num_cached_tokens=16 if setting.condition.is_warm else 0,
            fingerprint="fp_1",
        )


class NoProgress:
    """Counts, and shows nothing."""

    def __init__(self) -> None:
        self.num_jobs = self.num_done = 0

    def begin(self, num_jobs: int) -> None:
        self.num_jobs = num_jobs

    def describe(self, what: str) -> None:
        pass

    def advance(self) -> None:
        self.num_done += 1
