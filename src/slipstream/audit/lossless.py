"""Speculation on against off, token by token.

The reference is what each prompt gives alone, cold, with speculation off. Whatever else is done,
the answer must be the same. Where drafts are verified by rejection, answers with a temperature keep
their distribution only, so there the tokens are counted against what they were drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.audit.findings import Divergence, Report, Row, compare, find_vacuous
from slipstream.audit.law import MAX_DISTANCE, law_distance, law_params
from slipstream.audit.outcome import (
    AuditTarget,
    Case,
    Job,
    Message,
    Outcome,
    Prompt,
    RunResult,
)
from slipstream.audit.plan import NO_DRAFTERS, AuditPlan, Condition, Setting
from slipstream.errors import RequestError, SlipstreamError

_FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """A case and its reference."""

    case: Case
    outcome: Outcome


class AuditProgress(Protocol):
    """Is told how far the audit is."""

    def begin(self, num_jobs: int) -> None:
        """So many generations follow."""
        ...

    def describe(self, what: str) -> None:
        """The next ones are these."""
        ...

    def advance(self) -> None:
        """One is finished."""
        ...


class LosslessAudit:
    """One audit.

    Args:
        target: Generates.
        plan: What is run.
        prompts: Every prompt is one case a turn.
        nonce: Makes cache salts unlike those of any other audit of the same server.
        progress: Is told of every finished job.
    """

    def __init__(
        self,
        target: AuditTarget,
        plan: AuditPlan,
        prompts: Sequence[Prompt],
        *,
        nonce: str,
        progress: AuditProgress,
    ) -> None:
        self._target = target
        self._plan = plan
        self._prompts = prompts
        self._nonce = nonce
        self._progress = progress
        self._num_salts = 0
        self._fingerprints: dict[str, None] = {}
        self._faults: list[int | None] = []
        self._refused: dict[str, str] = {}

    def run(self) -> Report:
        """Run everything.

        Raises:
            SlipstreamError: A generation failed.
        """
        settings = list(self._plan.settings())
        num_turns = sum(1 for prompt in self._prompts for _ in prompt.turns())
        num_waves = sum(setting.condition.num_waves for setting in settings)
        self._progress.begin(num_turns * (num_waves + len(self._plan.samplings)))
        references = {name: self._reference(name) for name in self._plan.samplings}
        rows = tuple(self._row(setting, references[setting.sampling]) for setting in settings)
        return Report(
            rows=rows,
            vacuous=tuple(find_vacuous(rows, can_preempt=self._target.can_preempt)),
            fingerprints=tuple(self._fingerprints),
            refused=self._refused,
            num_drafter_faults=_sum(self._faults),
        )

    def _reference(self, sampling: str) -> list[Answer]:
        """Every turn alone; answers become part of the next turn's messages."""
        self._progress.describe(f"{sampling}, reference")
        setting = Setting(sampling, 1, NO_DRAFTERS, Condition())
        answers: list[Answer] = []
        for prompt in self._prompts:
            history: tuple[Message, ...] = ()
            for number, messages in enumerate(prompt.turns(), start=1):
                history = (*history, *messages)
                case_id = prompt.prompt_id if number == 1 else f"{prompt.prompt_id} turn {number}"
                case = Case(case_id, history, prompt.text)
                params = self._plan.params(sampling, len(answers))
                try:
                    result = self._run(setting, [Job(case, params, self._salt())])
                except RequestError as error:
                    if error.status >= _FIRST_SERVER_ERROR:
                        raise
                    self._refused[case_id] = error.message
                    break
                answers.append(Answer(case, result.outcomes[0]))
                history = (*history, {"role": "assistant", "content": result.outcomes[0].text})
        if not answers:
            reasons = "; ".join(dict.fromkeys(self._refused.values()))
            raise SlipstreamError(f"no prompt could be run: {reasons}", hint="see --prompts")
        return answers

    def _row(self, setting: Setting, reference: Sequence[Answer]) -> Row:
        self._progress.describe(
            f"{setting.sampling}, {setting.drafters.label}, {setting.condition.label}, "
            f"concurrency {setting.concurrency}"
        )
        shared_salt = self._salt() if setting.condition.is_warm else None
        waves = [
            self._run(setting, self._jobs(setting, reference, shared_salt, first_case))
            for first_case in self._first_cases(setting, reference)
        ]
        outcomes = [outcome for wave in waves for outcome in wave.outcomes]
        distance = None
        if self._keeps_law_only(setting):
            distance = law_distance(draw for outcome in outcomes for draw in outcome.draws)
        preemptions = [wave.num_preemptions for wave in waves]
        return Row(
            setting=setting,
            num_prompts=len(outcomes),
            num_tokens=sum(len(outcome.token_ids) for outcome in outcomes),
            num_drafted=sum(outcome.num_draft_tokens for outcome in outcomes),
            num_accepted=sum(outcome.num_accepted_tokens for outcome in outcomes),
            num_prefix_hits=sum(outcome.num_cached_tokens for outcome in outcomes),
            num_preemptions=_sum(preemptions),
            divergences=(
                tuple(self._divergences(waves, reference))
                if distance is None
                else _of_law(distance, outcomes)
            ),
            law_distance=distance,
        )

    def _keeps_law_only(self, setting: Setting) -> bool:
        is_drafted = self._target.verification == "rejection" and not setting.drafters.is_off
        return is_drafted and not self._plan.params(setting.sampling, 0).is_greedy

    def _first_cases(self, setting: Setting, reference: Sequence[Answer]) -> list[int]:
        """Number of the first case of each wave; where samples are counted, none comes twice."""
        step = len(reference) if self._keeps_law_only(setting) else 0
        return [step * wave for wave in range(setting.condition.num_waves)]

    def _jobs(
        self, setting: Setting, reference: Sequence[Answer], salt: str | None, first_case: int
    ) -> list[Job]:
        jobs: list[Job] = []
        for number, answer in enumerate(reference, start=first_case):
            params = self._plan.params(setting.sampling, number)
            if self._keeps_law_only(setting):
                params = law_params(params)
            jobs.append(Job(answer.case, params, salt or self._salt()))
        return jobs

    def _divergences(
        self, waves: Sequence[RunResult], reference: Sequence[Answer]
    ) -> Iterator[Divergence]:
        is_first = True
        for number, wave in enumerate(waves, start=1):
            for answer, outcome in zip(reference, wave.outcomes, strict=True):
                found = compare(answer.case.case_id, number, answer.outcome, outcome)
                if found is None:
                    continue
                if is_first and found.what == "tokens":
                    known = answer.outcome.token_ids[: found.position]
                    tokens = (*answer.outcome.prompt_token_ids, *known)
                    found = replace(found, top_two=self._target.top_two(tokens))
                    is_first = False
                yield found

    def _run(self, setting: Setting, jobs: Sequence[Job]) -> RunResult:
        result = self._target.run(setting, jobs, self._progress.advance)
        for outcome in result.outcomes:
            self._fingerprints[outcome.fingerprint] = None
        self._faults.append(result.num_drafter_faults)
        return result

    def _salt(self) -> str:
        self._num_salts += 1
        return f"audit-{self._nonce}-{self._num_salts}"


def _of_law(distance: float, outcomes: Sequence[Outcome]) -> tuple[Divergence, ...]:
    """A divergence where the tokens do not follow what they were drawn from."""
    if distance <= MAX_DISTANCE:
        return ()
    num_tokens = sum(len(outcome.draws) for outcome in outcomes)
    return (Divergence("all", 1, "law", num_tokens, None, None),)


def _sum(counts: Sequence[int | None]) -> int | None:
    """None if one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
