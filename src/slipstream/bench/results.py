"""What a benchmark measures: turns, answers, groups of them, and pairs of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, Self

Mode = Literal["off", "on", "control"]
"""Speculation off, on, and off a second time to show the noise."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """What speculation did; counts only what was kept in the output.

    Attributes:
        num_steps: Steps that drew a token, drafted or not; a turn's first one ends its prompt.
        num_drafts: Steps that verified a draft.
        num_draft_tokens: Nodes verified.
        num_accepted_tokens: Draft tokens kept, bonus excluded.
        drafted_at: [i] drafts that reached depth i + 1.
        accepted_at: [i] drafts of which depth i + 1 was kept.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> Self:
        """The sum of many."""
        items = list(counts)
        return cls(
            num_steps=sum(item.num_steps for item in items),
            num_drafts=sum(item.num_drafts for item in items),
            num_draft_tokens=sum(item.num_draft_tokens for item in items),
            num_accepted_tokens=sum(item.num_accepted_tokens for item in items),
            drafted_at=_column_sums([item.drafted_at for item in items]),
            accepted_at=_column_sums([item.accepted_at for item in items]),
        )


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The engine's own counters, or their growth over a run; seconds are sums over steps.

    Attributes:
        num_rows: Rows of all target passes.
        total_s: Drafting, target passes and sampling.
        verify_s: Target passes and sampling.
    """

    num_steps: float = 0.0
    num_rows: float = 0.0
    total_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0

    def since(self, earlier: StepTimes) -> StepTimes:
        """How much was counted after `earlier`."""
        return StepTimes(
            num_steps=self.num_steps - earlier.num_steps,
            num_rows=self.num_rows - earlier.num_rows,
            total_s=self.total_s - earlier.total_s,
            draft_s=self.draft_s - earlier.draft_s,
            verify_s=self.verify_s - earlier.verify_s,
        )

    @classmethod
    def total(cls, times: Sequence[StepTimes | None]) -> Self | None:
        """The sum of many; None when one of them is not known."""
        known = [item for item in times if item is not None]
        if len(known) < len(times) or not known:
            return None
        return cls(
            num_steps=sum(item.num_steps for item in known),
            num_rows=sum(item.num_rows for item in known),
            total_s=sum(item.total_s for item in known),
            draft_s=sum(item.draft_s for item in known),
            verify_s=sum(item.verify_s for item in known),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation. Times are moments of one clock, in seconds.

    Attributes:
        token_ids: The output.
        num_first_tokens: Output tokens that came with the first event.
        started_s, first_token_s, finished_s: Sent, first event, last event.
    """

    token_ids: tuple[int, ...]
    num_first_tokens: int
    started_s: float
    first_token_s: float
    finished_s: float
    counts: DraftCounts = DraftCounts()
    prompt_len: int = 0
    num_cached_tokens: int = 0
    finish_reason: str = "length"

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_token_s - self.started_s

    @property
    def e2e_s(self) -> float:
        """End to end."""
        return self.finished_s - self.started_s

    @property
    def decode_s(self) -> float:
        """From the first event to the last."""
        return self.finished_s - self.first_token_s

    @property
    def num_decode_tokens(self) -> int:
        """Tokens that came within `decode_s`."""
        return len(self.token_ids) - self.num_first_tokens

    @property
    def num_decode_steps(self) -> int:
        """Steps within `decode_s`; 0 where the steps were not counted."""
        return max(self.counts.num_steps - 1, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """All turns of one prompt in one mode.

    Attributes:
        refusal: Why the prompt cannot be run; then the turns mean nothing.
    """

    turns: tuple[Turn, ...]
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Prompts that ran together in one mode.

    Attributes:
        answers: In the order of the prompts.
        times: What the engine counted meanwhile; None where it cannot be read.
    """

    answers: tuple[Answer, ...]
    times: StepTimes | None = None

    @property
    def turns(self) -> list[Turn]:
        """All turns of all answers."""
        return [turn for answer in self.answers for turn in answer.turns]

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def wall_s(self) -> float:
        """Time during which at least one turn was running."""
        return busy_seconds([(turn.started_s, turn.finished_s) for turn in self.turns])


@dataclass(frozen=True, slots=True)
class Measurement:
    """One group under one sampling in one round, in every mode: a paired observation.

    Attributes:
        unit: Which group; its samplings and rounds belong together when prompts are resampled.
        order: Modes in the order in which they ran.
    """

    unit: int
    category: str
    sampling: str
    round_index: int
    prompt_ids: tuple[str, ...]
    order: tuple[Mode, ...]
    runs: Mapping[Mode, GroupRun]


def busy_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of some intervals."""
    total_s, end_s = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total_s += max(stop - max(start, end_s), 0.0)
        end_s = max(end_s, stop)
    return total_s


def _column_sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
