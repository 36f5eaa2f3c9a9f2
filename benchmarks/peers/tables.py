"""A run's summary as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.peers.servers import Peer
from benchmarks.peers.summary import Rates, Ratio, Summary

TITLES = {"single": "One stream", "prefill": "Long prompts", "load": "Many streams"}


def tables(summary: Summary, peers: Sequence[Peer], engine: str) -> str:
    """One table for each workload, and one by category."""
    names = {peer.name: peer for peer in peers}
    parts = []
    for workload, title in TITLES.items():
        rates = [rate for rate in summary.rates if rate.workload == workload]
        ratios = [ratio for ratio in summary.ratios if ratio.workload == workload]
        whole = [rate for rate in rates if workload != "single" or not rate.case]
        if whole:
            parts.append(f"### {title}\n\n{_rates(whole, names)}\n{_ratios(ratios, engine)}")
    by_category = [rate for rate in summary.rates if rate.workload == "single" and rate.case]
    if by_category:
        parts.append(f"### One stream by category, tokens/s\n\n{_categories(by_category)}")
    return "\n".join(parts)


def _rates(rates: Iterable[Rates], peers: Mapping[str, Peer]) -> str:
    rows = [
        [
            rate.peer,
            peers[rate.peer].precision,
            peers[rate.peer].speculation,
            rate.case or "all",
            f"{rate.tokens_per_s:.1f}",
            _number(rate.decode_per_s, 1),
            _number(rate.ttft_ms, 0),
            _number(rate.tokens_per_burst, 2),
            "" if rate.num_equal is None else f"{rate.num_equal}/{rate.num_texts}",
        ]
        for rate in rates
    ]
    header = [
        "peer",
        "weights",
        "speculation",
        "case",
        "tokens/s",
        "decode",
        "TTFT ms",
        "tokens/burst",
        "texts as without",
    ]
    return _table(header, rows)


def _ratios(ratios: Sequence[Ratio], engine: str) -> str:
    """A row for each other peer and case, a column for each measure."""
    found = [ratio for ratio in ratios if ratio.workload != "single" or not ratio.case]
    measures = list(dict.fromkeys(ratio.measure for ratio in found))
    cells = {(r.case, r.subject, r.other, r.measure): r for r in found}
    keys = dict.fromkeys((r.case, r.subject, r.other) for r in found)
    rows = [
        [
            subject,
            other,
            case or "all",
            *(_bounds(cells.get((case, subject, other, name))) for name in measures),
        ]
        for case, subject, other in keys
    ]
    if not rows:
        return ""
    return _table([engine, "over", "case", *measures], rows)


def _categories(rates: Sequence[Rates]) -> str:
    categories = list(dict.fromkeys(rate.case for rate in rates))
    cells = {(rate.peer, rate.case): f"{rate.tokens_per_s:.0f}" for rate in rates}
    rows = [
        [peer, *(cells.get((peer, category), "") for category in categories)]
        for peer in dict.fromkeys(rate.peer for rate in rates)
    ]
    return _table(["peer", *categories], rows)


def _bounds(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Without the columns that nobody has."""
    rows = list(rows)
    kept = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [[line[index] for index in kept] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(kept))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
