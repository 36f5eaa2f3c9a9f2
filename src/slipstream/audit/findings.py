"""What a losslessness audit found: differences, rows, and what was never exercised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from slipstream.audit.outcome import Outcome, TopTwo
from slipstream.audit.plan import Setting


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that differs from the reference.

    Attributes:
        wave: 1, or 2 for the second run of a warm cache.
        position: First output token that differs; the number of tokens where none does.
        expected, actual: Token ids there; None where an output has ended.
        what: What differs: `tokens`, `finish_reason`, `text` or `prompt`; or `law`, of all answers
            of a row together.
        top_two: The target's best two tokens there; recomputed for the first of a row.
    """

    case_id: str
    wave: int
    what: str
    position: int
    expected: int | None
    actual: int | None
    top_two: TopTwo | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What one setting gave.

    Attributes:
        num_prefix_hits: Prompt tokens taken from the prefix cache.
        num_preemptions: None where it cannot be counted.
        law_distance: Where tokens cannot be compared, how far their counts are from the target's
            distributions, in standard deviations; None where tokens were compared.
    """

    setting: Setting
    num_prompts: int
    num_tokens: int
    num_drafted: int
    num_accepted: int
    num_prefix_hits: int
    num_preemptions: int | None
    divergences: tuple[Divergence, ...]
    law_distance: float | None = None

    @property
    def num_rejected(self) -> int:
        """Draft tokens that were verified and not kept."""
        return self.num_drafted - self.num_accepted


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and what keeps them from proving anything.

    Attributes:
        vacuous: Whatever the run never exercised, in words; empty for a proof.
        fingerprints: Of all answers; more than one makes the comparison meaningless.
        refused: Prompt -> why the model does not take it; no row counts it.
        num_drafter_faults: Times that a drafter was benched; None where it cannot be counted.
    """

    rows: tuple[Row, ...]
    vacuous: tuple[str, ...]
    fingerprints: tuple[str, ...]
    refused: Mapping[str, str]
    num_drafter_faults: int | None

    @property
    def num_divergences(self) -> int:
        """Answers that differ, over all rows."""
        return sum(len(row.divergences) for row in self.rows)

    def tokens(self) -> set[int]:
        """Every token that a divergence names."""
        found = [item for row in self.rows for item in row.divergences]
        named = {token for item in found for token in (item.expected, item.actual)}
        best = {token for item in found if item.top_two for token in item.top_two.token_ids}
        return {token for token in named if token is not None} | best


def compare(case_id: str, wave: int, expected: Outcome, actual: Outcome) -> Divergence | None:
    """The first difference between an answer and its reference."""
    pairs = zip_longest(expected.token_ids, actual.token_ids)
    for position, (wanted, given) in enumerate(pairs):
        if wanted != given:
            return Divergence(case_id, wave, "tokens", position, wanted, given)
    end = len(expected.token_ids)
    for what, is_equal in (
        ("prompt", expected.prompt_token_ids == actual.prompt_token_ids),
        ("finish_reason", expected.finish_reason == actual.finish_reason),
        ("text", expected.text == actual.text),
    ):
        if not is_equal:
            return Divergence(case_id, wave, what, end, None, None)
    return None


def find_vacuous(rows: Sequence[Row], *, can_preempt: bool) -> Iterator[str]:
    """What must have happened, and did not: in all, by drafter set and by condition."""
    if not sum(row.num_prefix_hits for row in rows):
        yield "no prefix hit was counted"
    if can_preempt and not sum(row.num_preemptions or 0 for row in rows):
        yield "no preemption was counted"
    sets = {row.setting.drafters.label: row.setting.drafters for row in rows}
    if all(drafters.is_off for drafters in sets.values()):
        yield "nothing was drafted"
    for label in [label for label, drafters in sets.items() if not drafters.is_off]:
        own = [row for row in rows if row.setting.drafters.label == label]
        if not sum(row.num_accepted for row in own):
            yield f"{label}: no draft token was accepted"
        if not sum(row.num_rejected for row in own):
            yield f"{label}: no draft token was rejected"
    for condition in {row.setting.condition: None for row in rows}:
        own = [row for row in rows if row.setting.condition == condition]
        if condition.is_warm and not sum(row.num_prefix_hits for row in own):
            yield f"{condition.label}: no prefix hit was counted"
        if condition.is_preempted and not sum(row.num_preemptions or 0 for row in own):
            yield f"{condition.label}: no preemption was counted"
