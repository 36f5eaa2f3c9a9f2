"""From measurements to numbers: one summary per category, per sampling and in total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from slipstream.bench.results import DraftCounts, GroupRun, Measurement, Mode, StepTimes, Turn
from slipstream.bench.statistics import (
    Estimate,
    PairedRate,
    distinct_2,
    is_repetitive,
    median_ratio,
    ratio_of_totals,
)


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """One mode by itself.

    Attributes:
        wall_s: Time during which anything was running.
        tokens_per_s: Output tokens over `wall_s`.
        decode_tokens_per_s: Of one stream: tokens after the first event over the time after it.
        decode_step_s: Mean time of a step after the first; None where steps were not counted.
        prefill_share: Time to first token over end-to-end time, of all turns together.
        draft_share, verify_share: Of the engine's step time; None where it cannot be read.
        outside_share: Of the wall time: everything but drafting, target passes and sampling.
        rows_per_step: Of the target's passes.
    """

    num_turns: int
    num_tokens: int
    wall_s: float
    tokens_per_s: float
    decode_tokens_per_s: float | None
    ttft_median_s: float
    ttft_total_s: float
    e2e_median_s: float
    e2e_total_s: float
    decode_total_s: float
    decode_step_s: float | None
    prefill_share: float
    draft_share: float | None
    verify_share: float | None
    outside_share: float | None
    rows_per_step: float | None


@dataclass(frozen=True, slots=True)
class DraftSummary:
    """What speculation did in the mode that had it.

    Attributes:
        mean_acceptance_length: Tokens per drafted step, bonus included.
        tokens_per_step: Tokens per decode step, drafted or not.
        drafted_step_share: Decode steps that had a draft.
        node_utilisation: Accepted over verified nodes.
        acceptance_at: [i] accepted at depth i + 1 over drafts that reached it.
        counts: The sums behind these.
    """

    mean_acceptance_length: float
    tokens_per_step: float | None
    drafted_step_share: float | None
    node_utilisation: float | None
    acceptance_at: tuple[float, ...]
    counts: DraftCounts


@dataclass(frozen=True, slots=True)
class Ratios:
    """One mode over `off`, above 1 where it is better; None where nothing can be compared.

    Attributes:
        tokens_per_s, decode: Of totals, end to end and after the first token.
        typical: Median over units of the end-to-end ratio.
        ttft, e2e: Median over units of the time with speculation off over that with it on.
    """

    tokens_per_s: Estimate | None
    decode: Estimate | None
    typical: Estimate | None
    ttft: Estimate | None
    e2e: Estimate | None


@dataclass(frozen=True, slots=True)
class Repetition:
    """How many plain outputs are degenerate loops, which any drafter predicts.

    Attributes:
        tokens_per_s_without: The end-to-end ratio over the runs whose plain outputs have none.
    """

    num_outputs: int
    num_repetitive: int
    median_distinct_2: float
    tokens_per_s_without: Estimate | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One part of a benchmark.

    Attributes:
        num_units: Prompts, or groups of prompts that ran together.
        modes: By name.
        noise: Off against off, if the control ran.
    """

    label: str
    num_units: int
    num_prompts: int
    modes: Mapping[Mode, ModeSummary]
    drafts: DraftSummary
    ratios: Ratios
    noise: Ratios | None
    repetition: Repetition


def summarize(label: str, measurements: Sequence[Measurement]) -> Summary:
    """Numbers of at least one measurement."""
    modes = measurements[0].runs.keys()
    return Summary(
        label=label,
        num_units=len({item.unit for item in measurements}),
        num_prompts=len({name for item in measurements for name in item.prompt_ids}),
        modes={mode: _mode([item.runs[mode] for item in measurements]) for mode in modes},
        drafts=_drafts([turn for item in measurements for turn in item.runs["on"].turns]),
        ratios=_ratios(measurements, "on"),
        noise=_ratios(measurements, "control") if "control" in modes else None,
        repetition=_repetition(measurements),
    )


def summarize_by(
    measurements: Sequence[Measurement], label_of: Callable[[Measurement], str]
) -> dict[str, Summary]:
    """One summary per label, in order of appearance."""
    parts: dict[str, list[Measurement]] = {}
    for item in measurements:
        parts.setdefault(label_of(item), []).append(item)
    return {label: summarize(label, part) for label, part in parts.items()}


def _mode(runs: Sequence[GroupRun]) -> ModeSummary:
    turns = [turn for run in runs for turn in run.turns]
    wall_s = sum(run.wall_s for run in runs)
    ttft_total_s, e2e_total_s = _total(turns, _ttft), _total(turns, _e2e)
    decode_s = sum(turn.decode_s for turn in turns)
    num_tokens = sum(len(turn.token_ids) for turn in turns)
    times = StepTimes.total([run.times for run in runs]) or StepTimes()
    inside_share = _share(times.total_s, wall_s)
    return ModeSummary(
        num_turns=len(turns),
        num_tokens=num_tokens,
        wall_s=wall_s,
        tokens_per_s=num_tokens / wall_s if wall_s else 0.0,
        decode_tokens_per_s=_share(sum(turn.num_decode_tokens for turn in turns), decode_s),
        ttft_median_s=median(map(_ttft, turns)),
        ttft_total_s=ttft_total_s,
        e2e_median_s=median(map(_e2e, turns)),
        e2e_total_s=e2e_total_s,
        decode_total_s=decode_s,
        decode_step_s=_share(decode_s, sum(turn.num_decode_steps for turn in turns)),
        prefill_share=_share(ttft_total_s, e2e_total_s) or 0.0,
        draft_share=_share(times.draft_s, times.total_s),
        verify_share=_share(times.verify_s, times.total_s),
        outside_share=1.0 - inside_share if inside_share else None,
        rows_per_step=_share(times.num_rows, times.num_steps),
    )


def _drafts(turns: Sequence[Turn]) -> DraftSummary:
    counts = DraftCounts.total(turn.counts for turn in turns)
    num_steps = sum(turn.num_decode_steps for turn in turns)
    mean_accepted = _share(counts.num_accepted_tokens, counts.num_drafts) or 0.0
    accepted_at = (*counts.accepted_at, *[0] * len(counts.drafted_at))
    return DraftSummary(
        mean_acceptance_length=1.0 + mean_accepted,
        tokens_per_step=_share(sum(turn.num_decode_tokens for turn in turns), num_steps),
        drafted_step_share=_share(counts.num_drafts, num_steps),
        node_utilisation=_share(counts.num_accepted_tokens, counts.num_draft_tokens),
        acceptance_at=tuple(
            accepted / drafted
            for accepted, drafted in zip(accepted_at, counts.drafted_at, strict=False)
            if drafted
        ),
        counts=counts,
    )


def _ratios(measurements: Sequence[Measurement], mode: Mode) -> Ratios:
    units = _units(measurements)

    def pairs(rate: Callable[[Sequence[GroupRun]], tuple[float, float]]) -> list[PairedRate]:
        return [
            PairedRate(
                *rate([item.runs[mode] for item in unit]),
                *rate([item.runs["off"] for item in unit]),
            )
            for unit in units
        ]

    return Ratios(
        tokens_per_s=ratio_of_totals(pairs(_throughput)),
        decode=ratio_of_totals(pairs(_decode)),
        typical=median_ratio(pairs(_throughput)),
        ttft=median_ratio(pairs(lambda runs: _count_per_second(runs, _ttft))),
        e2e=median_ratio(pairs(lambda runs: _count_per_second(runs, _e2e))),
    )


def _repetition(measurements: Sequence[Measurement]) -> Repetition:
    outputs = [turn.token_ids for item in measurements for turn in item.runs["off"].turns]
    clean = [item for item in measurements if not _has_repetition(item)]
    return Repetition(
        num_outputs=len(outputs),
        num_repetitive=sum(map(is_repetitive, outputs)),
        median_distinct_2=median(map(distinct_2, outputs)),
        tokens_per_s_without=_ratios(clean, "on").tokens_per_s if clean else None,
    )


def _has_repetition(measurement: Measurement) -> bool:
    return any(is_repetitive(turn.token_ids) for turn in measurement.runs["off"].turns)


def _units(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Samplings and rounds of one unit belong together."""
    units: dict[int, list[Measurement]] = {}
    for item in measurements:
        units.setdefault(item.unit, []).append(item)
    return list(units.values())


def _throughput(runs: Sequence[GroupRun]) -> tuple[float, float]:
    return sum(run.num_tokens for run in runs), sum(run.wall_s for run in runs)


def _decode(runs: Sequence[GroupRun]) -> tuple[float, float]:
    turns = [turn for run in runs for turn in run.turns]
    return sum(turn.num_decode_tokens for turn in turns), sum(turn.decode_s for turn in turns)


def _count_per_second(
    runs: Sequence[GroupRun], seconds: Callable[[Turn], float]
) -> tuple[float, float]:
    turns = [turn for run in runs for turn in run.turns]
    return len(turns), _total(turns, seconds)


def _ttft(turn: Turn) -> float:
    return turn.ttft_s


def _e2e(turn: Turn) -> float:
    return turn.e2e_s


def _total(turns: Sequence[Turn], seconds: Callable[[Turn], float]) -> float:
    return sum(map(seconds, turns))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
