"""The report at the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table

from slipstream.bench.provenance import Machine
from slipstream.bench.report import Report
from slipstream.bench.statistics import CONFIDENCE, Estimate
from slipstream.bench.summary import Summary
from slipstream.bench.verdict import shown

MAX_DEPTHS = 10


def print_report(report: Report, console: Console) -> None:
    """Tables, what is worth a warning, and the verdict; fits 80 columns."""
    by_sampling = list(report.by_sampling.values()) if len(report.by_sampling) > 1 else []
    parts = [*report.by_category.values(), *by_sampling, report.total]
    console.print(Group(_speed(parts), _latency(parts), _drafts(parts)))
    console.print(Group(_depths([*by_sampling, report.total]), _times(report)))
    for line in _warnings(report):
        console.print(f"[yellow]note:[/yellow] {line}", highlight=False)
    console.print(Panel(report.verdict.text, title=f"limit: {report.verdict.limit}"))


def _speed(parts: Sequence[Summary]) -> Table:
    has_noise = parts[-1].noise is not None
    table = make_table(
        "tokens per second, speculation off and on",
        ("prompts", "off", "on", "on / off", "decode", *(["off / off"] if has_noise else [])),
        f"on / off: of totals, end to end, {CONFIDENCE:.0%} interval. "
        "decode: of one stream, after its first token.",
    )
    for part in parts:
        noise = part.noise.tokens_per_s if part.noise is not None else None
        table.add_row(
            part.label,
            str(part.num_prompts),
            f"{part.modes['off'].tokens_per_s:.1f}",
            f"{part.modes['on'].tokens_per_s:.1f}",
            _ratio(part.ratios.tokens_per_s),
            _value(part.ratios.decode),
            *([_ratio(noise)] if has_noise else []),
        )
    return table


def _latency(parts: Sequence[Summary]) -> Table:
    table = make_table(
        "latency, medians in seconds",
        ("TTFT off", "on", "off / on", "E2E off", "on", "off / on", "loops"),
        "off / on: median over prompts of their own ratios. loops: degenerate plain outputs.",
    )
    for part in parts:
        off, on, repetition = part.modes["off"], part.modes["on"], part.repetition
        table.add_row(
            part.label,
            f"{off.ttft_median_s:.3f}",
            f"{on.ttft_median_s:.3f}",
            _value(part.ratios.ttft),
            f"{off.e2e_median_s:.2f}",
            f"{on.e2e_median_s:.2f}",
            _value(part.ratios.e2e),
            f"{repetition.num_repetitive}/{repetition.num_outputs}",
        )
    return table


def _drafts(parts: Sequence[Summary]) -> Table:
    table = make_table(
        "what speculation did",
        ("length", "per step", "steps", "drafted", "kept", "nodes", "draft", "verify"),
        "length: mean acceptance length. per step: tokens of all steps. steps: with a draft. "
        "nodes: kept over verified. draft, verify: shares of the engine's step time.",
    )
    for part in parts:
        drafts, on = part.drafts, part.modes["on"]
        table.add_row(
            part.label,
            f"{drafts.mean_acceptance_length:.2f}",
            number(drafts.tokens_per_step),
            percent(drafts.drafted_step_share),
            str(drafts.counts.num_draft_tokens),
            str(drafts.counts.num_accepted_tokens),
            percent(drafts.node_utilisation),
            percent(on.draft_share),
            percent(on.verify_share),
        )
    return table


def _depths(parts: Sequence[Summary]) -> Table:
    deepest = max(len(part.drafts.acceptance_at) for part in parts)
    table = make_table(
        "acceptance by depth",
        [str(depth + 1) for depth in range(min(deepest, MAX_DEPTHS))],
        "accepted over drafts that reached the depth",
    )
    for part in parts:
        shares = part.drafts.acceptance_at[:MAX_DEPTHS]
        table.add_row(part.label, *(f"{share:.2f}" for share in shares))
    return table


def _times(report: Report) -> Table:
    table = make_table(
        "totals in seconds",
        ("tokens", "wall", "TTFT", "decode", "E2E", "ms/step", "rows", "outside"),
        "rows: per pass. outside: of the wall time, all but drafting, target passes, sampling.",
    )
    for name, mode in report.total.modes.items():
        step_ms = None if mode.decode_step_s is None else mode.decode_step_s * 1000
        table.add_row(
            name,
            str(mode.num_tokens),
            f"{mode.wall_s:.2f}",
            f"{mode.ttft_total_s:.2f}",
            f"{mode.decode_total_s:.2f}",
            f"{mode.e2e_total_s:.2f}",
            number(step_ms),
            number(mode.rows_per_step),
            percent(mode.outside_share),
        )
    return table


def _warnings(report: Report) -> Iterable[str]:
    if not report.measured.is_complete:
        yield "the run was interrupted; these are the numbers until then"
    if report.measured.refusals:
        names = ", ".join(report.measured.refusals)
        yield f"{len(report.measured.refusals)} prompts were refused and left out: {names}"
    for mode in ("on", "control"):
        differing = [item for item in report.comparison.divergences if item.mode == mode]
        if differing:
            first = differing[0]
            yield (
                f"{len(differing)} outputs of mode {mode} differ from off, the first in "
                f"{first.prompt_id} ({first.sampling}) at token {first.position}"
            )
    yield from busy_warning(report.provenance.machine, " --control shows how much that matters")


def busy_warning(machine: Machine, advice: str = "") -> Iterable[str]:
    """What to say where others were at work; nothing where not."""
    if machine.load_average > 0.5 * machine.num_cores:
        yield (
            f"the machine was busy (load {machine.load_average} on {machine.num_cores} cores);"
            f"{advice or ' the times are hints'}"
        )


def make_table(title: str, columns: Sequence[str], caption: str | None = None) -> Table:
    """A table whose first column names the row and whose others are numbers."""
    table = Table(title=title, caption=caption)
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _value(estimate: Estimate | None) -> str:
    return number(None if estimate is None else estimate.value)


def _ratio(estimate: Estimate | None) -> str:
    return "-" if estimate is None else shown(estimate)


def number(value: float | None) -> str:
    """Two digits behind the point; a dash for what is not known."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share; a dash for what is not known."""
    return "-" if value is None else f"{value:.0%}"
