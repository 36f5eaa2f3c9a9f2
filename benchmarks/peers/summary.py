"""Rates of every peer, and how the subject's compare, with intervals.

The subject is an engine; each of its peers is compared with each other peer whose stored weights
have as many bits. A ratio above 1 is in the subject's favour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.servers import AGAIN, Peer
from benchmarks.peers.workloads import Cell, Measured, Request

from slipstream.bench.statistics import PairedRate, ratio_of_totals

MIN_DECODE_TOKENS = 8.0

Amounts = Mapping[str, tuple[float, float]]  # unit -> amount, seconds


@dataclass(frozen=True, slots=True)
class Rates:
    """One peer in one workload.

    Attributes:
        case: Empty, a category, a prompt's median length in tokens, or a number of streams.
        tokens_per_s: Answers' tokens over seconds since each was asked for; of long prompts their
            own tokens over the time to the first token; under load, over the time of the cell.
        decode_per_s: Tokens after the first burst over the time after it.
        ttft_ms: Median.
        tokens_per_burst: Decode tokens over bursts after the first: what a step emits.
        num_texts, num_equal: Answers, and those equal to the reference's.
    """

    peer: str
    workload: str
    case: str
    tokens_per_s: float
    decode_per_s: float | None = None
    ttft_ms: float | None = None
    tokens_per_burst: float | None = None
    num_texts: int = 0
    num_equal: int | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """The subject's rate over another peer's.

    Attributes:
        measure: `tokens_per_s`, `decode_per_s`, or `ttft` (the other's time over the subject's).
        low, high: Bootstrap interval of 95 % over prompts; under load the lowest and the highest
            ratio of a round. None where there is too little for it.
    """

    workload: str
    case: str
    measure: str
    subject: str
    other: str
    value: float
    low: float | None
    high: float | None
    num_units: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All rates and ratios of a run."""

    rates: tuple[Rates, ...]
    ratios: tuple[Ratio, ...]


def summarise(measured: Measured, peers: Sequence[Peer], engine: str) -> Summary:
    """Of whatever was measured until now.

    Args:
        engine: The subject.
    """
    rates: list[Rates] = []
    ratios: list[Ratio] = []
    pairs = [
        (subject, other)
        for subject in peers
        for other in peers
        if subject.engine == engine and _are_compared(subject, other)
    ]
    requests = [item for item in measured.requests if item.workload == "single"]
    for category in ("", *dict.fromkeys(item.category for item in requests)):
        chosen = [item for item in requests if category in ("", item.category)]
        rates += [rate for peer in peers if (rate := _single(peer, category, chosen))]
        ratios += _request_ratios("single", category, chosen, pairs, (_TOTAL, _DECODE))
    requests = [item for item in measured.requests if item.workload == "prefill"]
    for length in dict.fromkeys(item.category for item in requests):
        chosen = [item for item in requests if item.category == length]
        case = f"{median(item.reply.prompt_len for item in chosen):.0f}"
        rates += [rate for peer in peers if (rate := _prefill(peer, case, chosen))]
        ratios += _request_ratios("prefill", case, chosen, pairs, (_TTFT,))
    for level in dict.fromkeys(cell.num_streams for cell in measured.cells):
        cells = [cell for cell in measured.cells if cell.num_streams == level]
        rates += [rate for peer in peers if (rate := _load(peer, level, cells))]
        ratios += _load_ratios(level, cells, pairs)
    return Summary(tuple(rates), tuple(ratios))


def _are_compared(subject: Peer, other: Peer) -> bool:
    """A peer with its own other configurations only where that says what drafts or noise do."""
    if subject.name.endswith(AGAIN) or subject.name == other.name or subject.bits != other.bits:
        return False
    own = (subject.reference, subject.again().name)
    return other.name in own or other.engine != subject.engine


Measure = tuple[str, Callable[[Request], tuple[float, float]]]


def _decode_part(item: Request) -> tuple[float, float]:
    is_long = item.reply.num_decode_tokens >= MIN_DECODE_TOKENS
    return (item.reply.num_decode_tokens, item.reply.decode_s) if is_long else (0.0, 0.0)


_TOTAL: Measure = ("tokens_per_s", lambda item: (item.reply.num_tokens, item.reply.total_s))
_DECODE: Measure = ("decode_per_s", _decode_part)
_TTFT: Measure = ("ttft", lambda item: (item.reply.prompt_len, item.reply.ttft_s))


def _single(peer: Peer, category: str, requests: Iterable[Request]) -> Rates | None:
    requests = list(requests)
    own = [item for item in requests if item.peer == peer.name]
    if not own:
        return None
    num_steps = sum(item.reply.num_bursts - 1 for item in own)
    num_decoded = sum(item.reply.num_decode_tokens for item in own)
    texts = {
        (item.unit, item.round_index): item.reply.text
        for item in requests
        if item.peer == peer.reference
    }
    matches = [texts.get((item.unit, item.round_index)) == item.reply.text for item in own]
    return Rates(
        peer=peer.name,
        workload="single",
        case=category,
        tokens_per_s=_rate(_TOTAL[1](item) for item in own),
        decode_per_s=_rate(_DECODE[1](item) for item in own),
        ttft_ms=1e3 * median(item.reply.ttft_s for item in own),
        tokens_per_burst=num_decoded / num_steps if num_steps else None,
        num_texts=len(own),
        num_equal=sum(matches) if texts else None,
    )


def _prefill(peer: Peer, case: str, requests: Iterable[Request]) -> Rates | None:
    own = [item for item in requests if item.peer == peer.name]
    if not own:
        return None
    return Rates(
        peer=peer.name,
        workload="prefill",
        case=case,
        tokens_per_s=_rate(_TTFT[1](item) for item in own),
        ttft_ms=1e3 * median(item.reply.ttft_s for item in own),
        num_texts=len(own),
    )


def _load(peer: Peer, level: int, cells: Iterable[Cell]) -> Rates | None:
    own = [cell for cell in cells if cell.peer == peer.name]
    if not own:
        return None
    return Rates(
        peer=peer.name,
        workload="load",
        case=str(level),
        tokens_per_s=_rate((cell.num_tokens, cell.wall_s) for cell in own),
        ttft_ms=1e3 * median(cell.ttft_p50_s for cell in own),
        num_texts=sum(cell.num_requests for cell in own),
    )


def _request_ratios(
    workload: str,
    case: str,
    requests: Sequence[Request],
    pairs: Iterable[tuple[Peer, Peer]],
    measures: Iterable[Measure],
) -> list[Ratio]:
    found: list[Ratio] = []
    for measure, part in measures:
        amounts = _by_unit(requests, part)
        for subject, other in pairs:
            estimate = ratio_of_totals(_paired(amounts, subject.name, other.name))
            if estimate is not None:
                found.append(
                    Ratio(
                        workload=workload,
                        case=case,
                        measure=measure,
                        subject=subject.name,
                        other=other.name,
                        value=estimate.value,
                        low=estimate.low,
                        high=estimate.high,
                        num_units=estimate.num_units,
                    )
                )
    return found


def _load_ratios(
    level: int, cells: Sequence[Cell], pairs: Iterable[tuple[Peer, Peer]]
) -> list[Ratio]:
    amounts: dict[str, dict[str, tuple[float, float]]] = {}
    for cell in cells:
        units = amounts.setdefault(cell.peer, {})
        units[str(cell.round_index)] = (float(cell.num_tokens), cell.wall_s)
    found: list[Ratio] = []
    for subject, other in pairs:
        paired = _paired(amounts, subject.name, other.name)
        estimate = ratio_of_totals(paired)
        if estimate is not None:
            each = [
                (pair.amount / pair.seconds) / (pair.base_amount / pair.base_seconds)
                for pair in paired
                if pair.is_defined
            ]
            has_range = len(each) > 1
            found.append(
                Ratio(
                    workload="load",
                    case=str(level),
                    measure="tokens_per_s",
                    subject=subject.name,
                    other=other.name,
                    value=estimate.value,
                    low=min(each) if has_range else None,
                    high=max(each) if has_range else None,
                    num_units=estimate.num_units,
                )
            )
    return found


def _by_unit(
    requests: Iterable[Request], part: Callable[[Request], tuple[float, float]]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Peer -> unit -> amount and seconds, rounds together."""
    amounts: dict[str, dict[str, tuple[float, float]]] = {}
    for item in requests:
        units = amounts.setdefault(item.peer, {})
        amount, seconds = part(item)
        so_far = units.get(item.unit, (0.0, 0.0))
        units[item.unit] = (so_far[0] + amount, so_far[1] + seconds)
    return amounts


def _paired(amounts: Mapping[str, Amounts], subject: str, other: str) -> list[PairedRate]:
    base = amounts.get(other, {})
    return [
        PairedRate(*part, *base[unit])
        for unit, part in amounts.get(subject, {}).items()
        if unit in base
    ]


def _rate(parts: Iterable[tuple[float, float]]) -> float:
    amounts, seconds = zip(*parts, strict=True)
    return float(sum(amounts) / sum(seconds)) if sum(seconds) else 0.0
