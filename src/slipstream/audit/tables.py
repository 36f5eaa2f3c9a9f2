"""The results of audits for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from slipstream.audit.findings import Divergence, Report, Row
from slipstream.audit.fixture import Check, Result
from slipstream.audit.law import MAX_DISTANCE

_STYLES = {"pass": "green", "fail": "bold red", "not supported yet": "dim"}

TokenText = Callable[[int], str]


def print_lossless(report: Report, console: Console, token_text: TokenText) -> None:
    """One line per setting, totals, the first divergence, and what the run did not exercise.

    Args:
        token_text: A token's text, for the divergence.
    """
    table = Table(title="Speculation against the plain reference", title_justify="left")
    for name in ("sampling", "drafters", "condition"):
        table.add_column(name, overflow="fold")
    for name in ("at once", "prompts", "tokens", "drafted", "accepted", "rejected"):
        table.add_column(name, justify="right")
    for name in ("prefix hits", "preemptions", "divergences"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(*_cells(row), style="bold red" if row.divergences else None)
    table.add_section()
    table.add_row(*_total_cells(report.rows), style="bold")
    console.print(table)
    for line in _notes(report, token_text):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_golden(results: Sequence[Result], console: Console) -> None:
    """One line per fixture, then what is wrong with those that fail."""
    table = Table(title="Recorded outputs, recomputed", title_justify="left")
    table.add_column("family", overflow="fold")
    table.add_column("fixture", overflow="fold")
    table.add_column("largest error", justify="right")
    table.add_column("verdict")
    for result in results:
        error = "" if result.error is None else f"{result.error:.1e}"
        style = _STYLES[result.verdict]
        table.add_row(result.family, result.fixture, error, f"[{style}]{result.verdict}[/]")
    console.print(table)
    for result in results:
        if result.verdict == "fail":
            for line in _failures(result):
                console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(row: Row) -> list[str]:
    setting = row.setting
    return [
        setting.sampling,
        setting.drafters.label,
        setting.condition.label,
        str(setting.concurrency),
        *_counts([row]),
    ]


def _total_cells(rows: Sequence[Row]) -> list[str]:
    return ["all", "", "", "", *_counts(rows)]


def _counts(rows: Sequence[Row]) -> list[str]:
    preemptions = [row.num_preemptions for row in rows if row.num_preemptions is not None]
    return [
        str(sum(row.num_prompts for row in rows)),
        str(sum(row.num_tokens for row in rows)),
        str(sum(row.num_drafted for row in rows)),
        str(sum(row.num_accepted for row in rows)),
        str(sum(row.num_rejected for row in rows)),
        str(sum(row.num_prefix_hits for row in rows)),
        str(sum(preemptions)) if preemptions else "?",
        str(sum(len(row.divergences) for row in rows)),
    ]


def _notes(report: Report, token_text: TokenText) -> Iterator[str]:
    first = next(((row, row.divergences[0]) for row in report.rows if row.divergences), None)
    if first is not None:
        yield _first_divergence(*first, token_text)
    distances = [row.law_distance for row in report.rows if row.law_distance is not None]
    if distances:
        yield (
            "Drafts with a temperature are verified by rejection, which keeps the distribution: in "
            f"{len(distances)} settings tokens were counted, not compared; the farthest count is "
            f"{max(distances):.2f} standard deviations from its expectation, {MAX_DISTANCE:g} are "
            "allowed."
        )
    if len(report.fingerprints) > 1:
        yield (
            f"The answers come from {len(report.fingerprints)} different numerics "
            f"({', '.join(report.fingerprints)}); equality is promised within one."
        )
    for prompt_id, reason in report.refused.items():
        yield f"Left out, prompt {prompt_id}: {reason}"
    if report.num_drafter_faults:
        yield (
            f"Drafters were faulty or too slow {report.num_drafter_faults} times and proposed "
            "nothing for a while after that."
        )
    for what in report.vacuous:
        yield f"Not proven, {what}."


def _first_divergence(row: Row, item: Divergence, token_text: TokenText) -> str:
    setting = row.setting
    where = (
        f"The first divergence: prompt {item.case_id}, {setting.sampling}, drafters "
        f"{setting.drafters.label}, {setting.condition.label}, concurrency {setting.concurrency}, "
        f"run {item.wave}: "
    )
    if item.what == "law":
        return (
            f"{where}the {item.position} tokens do not follow the target's distributions: a count "
            f"is {row.law_distance:.3g} standard deviations from its expectation."
        )
    if item.what != "tokens":
        return f"{where}the {item.what} differs after {item.position} equal tokens."
    text = (
        f"{where}output token {item.position} is {_token(item.actual, token_text)} instead of "
        f"{_token(item.expected, token_text)}."
    )
    if item.top_two is None:
        return text
    best = " and ".join(_token(token, token_text) for token in item.top_two.token_ids)
    return f"{text} The target's best two there are {best}, {item.top_two.gap:.6g} apart."


def _token(token: int | None, token_text: TokenText) -> str:
    return "the end" if token is None else f"{token} ({token_text(token)!r})"


def _failures(result: Result) -> Iterator[str]:
    if result.reason:
        yield f"{result.fixture}: {result.reason}"
    elif not result.checks:
        yield f"{result.fixture}: there was nothing to compare"
    for check in result.checks:
        if not check.is_passed:
            yield f"{result.fixture}: {_failure(check)}"


def _failure(check: Check) -> str:
    if check.num_compared is None:
        note = f"; {check.note}" if check.note else ""
        return f"{check.name} differ by {check.error:.3g}, allowed are {check.bound:g}{note}"
    if check.num_wrong:
        return f"{check.name}: {check.num_wrong} of {check.num_compared} differ; {check.note}"
    return f"{check.name} differ by {check.error:.3g}, allowed are {check.bound:g}"
