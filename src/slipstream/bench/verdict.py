"""What limits the gain: the ratio taken apart, and what it would be without each limit.

After the first token a plain step costs 1 and emits 1 token. With speculation a step emits
`tokens_per_step` and costs `step_cost`, in plain steps; the decode ratio is their quotient. The
cost is 1 + drafting + wider passes, where the latter holds everything else that a drafted step
does more: rows, sampling, rollback, learning. End to end, the time to first token stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.bench.divergence import Comparison
from slipstream.bench.statistics import Estimate
from slipstream.bench.summary import Summary

Limit = Literal["acceptance", "coverage", "width", "drafting", "prefill", "nothing", "no drafts"]

FLOOR = 0.97
"""Speculation promises at least this share of the plain tokens per second."""

MIN_EFFECT = 0.02
REPETITIVE_SHARE = 0.2
MAX_DRAFT_SHARE = 0.99
_LAW_ONLY = (
    "Sampled outputs were not compared: `speculation.verification: rejection` keeps their "
    "distribution, not their tokens."
)
MAX_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A decode step with speculation, in units of a plain one.

    Attributes:
        tokens_per_step: Emitted tokens.
        step_cost: Mean duration.
        drafting_cost: The part of it that was spent drafting.
        width_cost: The rest above 1; never negative.
        draft_reach: Mean depth that drafts reached, per step (most tokens they could add).
        coverage: Share of the steps that had a draft.
        prefill_share: Time to first token over end-to-end time, speculation off.
    """

    tokens_per_step: float
    step_cost: float
    drafting_cost: float
    width_cost: float
    draft_reach: float
    coverage: float
    prefill_share: float

    @property
    def decode_ratio(self) -> float:
        """Tokens per second after the first token, over those of plain decoding."""
        return self.tokens_per_step / self.step_cost

    def without(self) -> dict[Limit, float]:
        """The end-to-end ratio if one limit were lifted and all else stayed."""
        accepted_per_draft = (self.tokens_per_step - 1.0) / self.coverage
        decode_ratios: dict[Limit, float] = {
            "acceptance": (1.0 + self.draft_reach) / self.step_cost,
            "coverage": (1.0 + accepted_per_draft)
            / (1.0 + self.drafting_cost + self.width_cost / self.coverage),
            "width": self.tokens_per_step / (self.step_cost - self.width_cost),
            "drafting": self.tokens_per_step / (self.step_cost - self.drafting_cost),
        }
        ratios = {limit: self.end_to_end(ratio) for limit, ratio in decode_ratios.items()}
        return ratios | {"prefill": self.decode_ratio}

    def end_to_end(self, decode_ratio: float) -> float:
        """The end-to-end ratio that a decode ratio gives (Amdahl's law)."""
        return 1.0 / (self.prefill_share + (1.0 - self.prefill_share) / decode_ratio)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the numbers say.

    Attributes:
        limit: What costs most.
        text: One paragraph.
        decomposition: None where steps were not counted or nothing was drafted.
        without: Limit -> the end-to-end ratio if it were lifted.
    """

    limit: Limit
    text: str
    decomposition: Decomposition | None
    without: Mapping[Limit, float]


def judge(total: Summary, categories: Sequence[Summary], comparison: Comparison) -> Verdict:
    """The verdict over a whole benchmark."""
    parts = decompose(total)
    without = parts.without() if parts is not None else {}
    limit = _limit(total, parts, without)
    sentences = [
        _equality(comparison),
        _gain(total),
        _costs(parts),
        _limits(limit, parts, without, categories),
        _by_category(categories),
        _repetition(total, categories),
    ]
    text = " ".join(sentence for sentence in sentences if sentence)
    return Verdict(limit, text, parts, without)


def decompose(summary: Summary) -> Decomposition | None:
    """The parts of the decode ratio; None where steps were not counted or nothing was drafted."""
    off, on, drafts = summary.modes["off"], summary.modes["on"], summary.drafts
    coverage = drafts.drafted_step_share
    if not (off.decode_step_s and on.decode_step_s and drafts.tokens_per_step and coverage):
        return None
    step_cost = on.decode_step_s / off.decode_step_s
    # Drafting happens after the first token only, so its share of decode time is larger.
    decode_share = 1.0 - on.prefill_share
    draft_share = min((on.draft_share or 0.0) / max(decode_share, 1e-9), MAX_DRAFT_SHARE)
    drafting_cost = step_cost * draft_share
    return Decomposition(
        tokens_per_step=drafts.tokens_per_step,
        step_cost=step_cost,
        drafting_cost=drafting_cost,
        width_cost=max(step_cost - 1.0 - drafting_cost, 0.0),
        draft_reach=sum(drafts.counts.drafted_at) / drafts.counts.num_drafts * coverage,
        coverage=coverage,
        prefill_share=off.prefill_share,
    )


def _limit(total: Summary, parts: Decomposition | None, without: Mapping[Limit, float]) -> Limit:
    if not total.drafts.counts.num_drafts:
        return "no drafts"
    if parts is None:
        return "nothing"
    worst = max(without, key=lambda limit: without[limit])
    present = parts.end_to_end(parts.decode_ratio)
    return worst if without[worst] >= present + MIN_EFFECT else "nothing"


def _equality(comparison: Comparison) -> str:
    num_on, num_control = comparison.num_divergences("on"), comparison.num_divergences("control")
    if not num_on and not num_control:
        return _LAW_ONLY if comparison.law_only else ""
    text = (
        f"{num_on} {'output differs' if num_on == 1 else 'outputs differ'} between speculation off "
        "and on, so the ratios compare different answers; `slipstream audit lossless` shows where."
    )
    if num_control:
        text += f" {num_control} differ even between two runs with it off."
    return text


def _gain(total: Summary) -> str:
    overall, decode = total.ratios.tokens_per_s, total.ratios.decode
    if overall is None:
        return "Too few tokens came out to measure a rate."
    text = f"Speculation gives {shown(overall)} times the tokens per second end to end"
    if decode is not None:
        text += f", {decode.value:.2f} after the first token"
    noise = total.noise.tokens_per_s if total.noise is not None else None
    if _is_chance(overall, noise):
        text += ": no difference that this run could tell from chance"
    elif overall.is_below(1.0):
        text += ": it is slower"
    if noise is not None:
        text += f"; off against off gives {shown(noise)}"
    return text + "."


def _is_chance(ratio: Estimate, noise: Estimate | None) -> bool:
    """Whether a ratio may be 1 by its own interval, or by that of off against off."""
    if ratio.low is None or ratio.high is None:
        return False
    if ratio.low <= 1.0 <= ratio.high:
        return True
    if noise is None or noise.low is None or noise.high is None:
        return False
    return noise.low <= ratio.value <= noise.high


def _costs(parts: Decomposition | None) -> str:
    if parts is None:
        return ""
    text = (
        f"A step after the first token emits {parts.tokens_per_step:.2f} tokens instead of 1 and "
        f"costs {parts.step_cost:.2f} plain steps: {parts.drafting_cost:.2f} for drafting, "
        f"{parts.width_cost:.2f} for wider passes and what else a draft brings."
    )
    if parts.step_cost - parts.drafting_cost < 1.0 - MAX_NOISE:
        text += (
            " A wider pass cannot be cheaper than a plain one, so the machine's noise is larger "
            "than that: repeat the run on a quiet machine, with more rounds."
        )
    return text


def _limits(
    limit: Limit,
    parts: Decomposition | None,
    without: Mapping[Limit, float],
    categories: Sequence[Summary],
) -> str:
    if limit == "no drafts":
        return "Nothing was drafted, so nothing could be gained."
    if parts is None:
        return ""
    if limit == "nothing":
        return f"No single cause costs more than {MIN_EFFECT:.0%}."
    ranked = sorted(without, key=lambda name: -without[name])
    text = f"What limits it most is {_cause(limit, parts)}; without that it would be "
    text += f"{without[limit]:.2f}."
    if limit in ("acceptance", "coverage") and len(categories) > 1:
        worst = min(categories, key=lambda item: item.drafts.tokens_per_step or 1.0)
        text += (
            f" It is worst in {worst.label}: {worst.drafts.tokens_per_step or 1.0:.2f} tokens a "
            "step."
        )
    others = ", ".join(f"{name} {without[name]:.2f}" for name in ranked if name != limit)
    return f"{text} With one other limit lifted: {others}."


def _cause(limit: Limit, parts: Decomposition) -> str:
    causes: dict[Limit, str] = {
        "acceptance": "rejected drafts: "
        f"{parts.tokens_per_step - 1.0:.2f} of {parts.draft_reach:.2f} tokens a step that the "
        "drafts could add are kept",
        "coverage": f"missing drafts: {parts.coverage:.0%} of the steps have one",
        "width": f"the cost of wider passes: {parts.width_cost:.2f} plain steps",
        "drafting": f"the cost of drafting: {parts.drafting_cost:.2f} plain steps",
        "prefill": f"the prompt: {parts.prefill_share:.0%} of the time passes before the first "
        "token",
    }
    return causes[limit]


def _by_category(categories: Sequence[Summary]) -> str:
    ratios = {
        item.label: item.ratios.tokens_per_s
        for item in categories
        if item.ratios.tokens_per_s is not None
    }
    if len(ratios) < 2:
        return ""
    best = max(ratios, key=lambda label: ratios[label].value)
    worst = min(ratios, key=lambda label: ratios[label].value)
    text = f"The gain is largest in {best} ({shown(ratios[best])})"
    text += f" and smallest in {worst} ({shown(ratios[worst])})."
    slow = [label for label, ratio in ratios.items() if ratio.is_below(FLOOR)]
    if slow:
        text += f" Below {FLOOR} with confidence: {', '.join(slow)}."
    return text


def _repetition(total: Summary, categories: Sequence[Summary]) -> str:
    repetition = total.repetition
    if not repetition.num_repetitive:
        return ""
    text = (
        f"{repetition.num_repetitive} of {repetition.num_outputs} plain outputs are degenerate "
        "loops, which any drafter predicts"
    )
    guilty = [
        item.label
        for item in categories
        if item.repetition.num_repetitive >= REPETITIVE_SHARE * item.repetition.num_outputs
    ]
    if guilty and len(categories) > 1:
        text += f" (many in {', '.join(guilty)})"
    without = repetition.tokens_per_s_without
    if without is not None:
        text += f"; without them the gain is {shown(without)}"
    return text + "."


def shown(estimate: Estimate) -> str:
    """`1.20 (1.10 to 1.31)`."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
