"""What is asked of whoever generates, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.audit.law import Draw
from slipstream.audit.plan import Setting
from slipstream.sampling.params import SamplingParams

Message = Mapping[str, Any]  # Any: message values are the chat template's business


class Prompt(Protocol):
    """One conversation, or one text to complete."""

    @property
    def prompt_id(self) -> str:
        """Its name in the report."""
        ...

    @property
    def text(self) -> str | None:
        """A prompt to complete as it is; None where there are messages."""
        ...

    def turns(self) -> Iterator[tuple[Message, ...]]:
        """Messages that each turn adds before its answer; one empty turn for a text."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One turn of one prompt, with the answers to earlier turns in its messages."""

    case_id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One generation.

    Attributes:
        salt: Jobs of one salt share the prefix cache and drafter memory.
    """

    case: Case
    params: SamplingParams
    salt: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished generation.

    Attributes:
        num_cached_tokens: Prompt tokens that a prefix hit saved.
        fingerprint: Of the numerics that computed it.
        draws: What each token was drawn from, where the parameters asked for it.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_cached_tokens: int = 0
    fingerprint: str = ""
    draws: tuple[Draw, ...] = ()


@dataclass(frozen=True, slots=True)
class TopTwo:
    """The two most probable tokens at one position and the gap between their logits."""

    token_ids: tuple[int, ...]
    gap: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outcomes in the order of the jobs, and what was counted meanwhile.

    Attributes:
        num_preemptions, num_drafter_faults: None where they cannot be counted.
    """

    outcomes: tuple[Outcome, ...]
    num_preemptions: int | None
    num_drafter_faults: int | None


class AuditTarget(Protocol):
    """Generates: an engine in this process, or a server."""

    @property
    def can_preempt(self) -> bool:
        """Whether preemption can be forced, so that a run without any is vacuous."""
        ...

    @property
    def verification(self) -> str:
        """How drafts are checked: `exact`, or `rejection`, which promises less."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:  # Any: JSON values
        """Model, fingerprint and the like, for the report; complete after the first run."""
        ...

    def run(self, setting: Setting, jobs: Sequence[Job], on_done: Callable[[], None]) -> RunResult:
        """Run all jobs under a setting, at most `setting.concurrency` at a time.

        Raises:
            SlipstreamError: A job failed.
        """
        ...

    def top_two(self, token_ids: Sequence[int]) -> TopTwo:
        """What the target itself makes of the position after `token_ids`."""
        ...

    def token_text(self, token: int) -> str:
        """A token as text, for people."""
        ...
