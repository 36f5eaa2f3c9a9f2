"""The whole result of a speculation benchmark, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.bench.divergence import Comparison, compare_outputs
from slipstream.bench.document import write_document
from slipstream.bench.measure import Measured
from slipstream.bench.plan import BenchPlan
from slipstream.bench.provenance import Provenance
from slipstream.bench.results import GroupRun, Measurement, Turn
from slipstream.bench.statistics import CONFIDENCE, NUM_RESAMPLES, distinct_2
from slipstream.bench.summary import Summary, summarize, summarize_by
from slipstream.bench.verdict import Verdict, judge
from slipstream.errors import SlipstreamError

FORMAT = 1
KIND = "slipstream bench speculation"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a benchmark says.

    Attributes:
        facts: Of the target: model, fingerprint, configuration, ...
    """

    provenance: Provenance
    facts: Mapping[str, Any]  # Any: JSON values
    plan: BenchPlan
    measured: Measured
    total: Summary
    by_sampling: Mapping[str, Summary]
    by_category: Mapping[str, Summary]
    comparison: Comparison
    verdict: Verdict


def build_report(
    provenance: Provenance,
    facts: Mapping[str, Any],  # Any: JSON values
    plan: BenchPlan,
    measured: Measured,
) -> Report:
    """Summaries and verdict of what was measured.

    Raises:
        SlipstreamError: Nothing was.
    """
    measurements = measured.measurements
    if not measurements:
        reasons = "; ".join(dict.fromkeys(measured.refusals.values()))
        raise SlipstreamError(
            "no prompt could be measured" + (f": {reasons}" if reasons else ""),
            hint="see --prompts and --max-tokens",
        )
    total = summarize("all", measurements)
    by_category = summarize_by(measurements, lambda item: item.category)
    comparison = compare_outputs(measurements, _law_only(plan, facts))
    return Report(
        provenance=provenance,
        facts=facts,
        plan=plan,
        measured=measured,
        total=total,
        by_sampling=summarize_by(measurements, lambda item: item.sampling),
        by_category=by_category,
        comparison=comparison,
        verdict=judge(total, list(by_category.values()), comparison),
    )


def _law_only(plan: BenchPlan, facts: Mapping[str, Any]) -> list[str]:  # Any: JSON values
    """Samplings whose distribution is kept, but not their tokens (decision 7)."""
    if facts.get("verification", "exact") == "exact":
        return []
    return [name for name in plan.samplings if plan.params(name, 0).temperature > 0.0]


def write_json(report: Report, path: Path) -> None:
    """Write the report; the file holds every turn's numbers, and no text."""
    write_document(as_json(report), path)


def as_json(report: Report) -> dict[str, Any]:  # Any: JSON values
    """The report as JSON values."""
    plan = replace(report.plan, nonce="")
    return {
        "kind": KIND,
        "format": FORMAT,
        "provenance": asdict(report.provenance),
        "target": dict(report.facts),
        "plan": asdict(plan),
        "is_complete": report.measured.is_complete,
        "refused_prompts": report.measured.refusals,
        "statistics": {
            "unit": "prompt" if plan.concurrency == 1 else "group of prompts that ran together",
            "interval": f"percentile bootstrap over units, {CONFIDENCE:.0%}",
            "num_resamples": NUM_RESAMPLES,
        },
        "verdict": asdict(report.verdict),
        "outputs": asdict(report.comparison),
        "summary": {
            "total": asdict(report.total),
            "by_sampling": {name: asdict(item) for name, item in report.by_sampling.items()},
            "by_category": {name: asdict(item) for name, item in report.by_category.items()},
        },
        "runs": [_measurement(item) for item in report.measured.measurements],
    }


def _measurement(item: Measurement) -> dict[str, Any]:
    return {
        "unit": item.unit,
        "category": item.category,
        "sampling": item.sampling,
        "round": item.round_index,
        "prompts": item.prompt_ids,
        "order": item.order,
        "modes": {mode: _run(run) for mode, run in item.runs.items()},
    }


def _run(run: GroupRun) -> dict[str, Any]:
    return {
        "wall_s": run.wall_s,
        "engine": None if run.times is None else asdict(run.times),
        "answers": [[_turn(turn) for turn in answer.turns] for answer in run.answers],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.prompt_len,
        "cached_tokens": turn.num_cached_tokens,
        "tokens": len(turn.token_ids),
        "finish": turn.finish_reason,
        "ttft_s": turn.ttft_s,
        "e2e_s": turn.e2e_s,
        "steps": turn.counts.num_steps,
        "drafts": turn.counts.num_drafts,
        "drafted": turn.counts.num_draft_tokens,
        "accepted": turn.counts.num_accepted_tokens,
        "distinct_2": distinct_2(turn.token_ids),
    }
