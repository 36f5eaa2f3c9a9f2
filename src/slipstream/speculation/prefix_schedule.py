"""How many drafts of each request are worth verifying together (DSpark's prefix scheduler).

No decision looks at the token whose row it admits, so both rules keep rejection verification
lossless. Source: DSpark (arXiv:2607.05147), algorithm 1 and its asynchronous variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixSchedule:
    """Result of algorithm 1.

    Attributes:
        lengths: Drafts to verify of each request, the anchor excluded.
        throughput: Expected tokens per second.
        admitted: (request, depth) in the order of admission; depths from 1.
        tried: Throughput without drafts and after each attempt; the last one may have been refused.
        survival: By request and depth, probability that the prefix is accepted.
    """

    lengths: tuple[int, ...]
    throughput: float
    admitted: tuple[tuple[int, int], ...]
    tried: tuple[float, ...]
    survival: tuple[tuple[float, ...], ...]


def schedule_prefixes(
    confidences: Sequence[Sequence[float]], steps_per_s: Mapping[int, float]
) -> PrefixSchedule:
    """Admit drafts by decreasing survival until the first that does not pay.

    Args:
        confidences: By request and depth, probability that the draft is accepted if those before
            it are.
        steps_per_s: Rows of a target pass, anchors included -> passes per second.
    """
    survival = survivals(confidences)
    num_rows = len(confidences)
    expected = float(num_rows)
    best = expected * steps_per_s[num_rows]
    lengths = [0] * num_rows
    admitted: list[tuple[int, int]] = []
    tried = [best]
    for request, depth in by_survival(survival):
        expected += survival[request][depth - 1]
        num_rows += 1
        throughput = expected * steps_per_s[num_rows]
        tried.append(throughput)
        if throughput <= best:
            break
        best = throughput
        lengths[request] = depth
        admitted.append((request, depth))
    return PrefixSchedule(tuple(lengths), best, tuple(admitted), tuple(tried), survival)


def best_row_count(
    confidences: Sequence[Sequence[float]], steps_per_s: Mapping[int, float]
) -> tuple[int, float]:
    """Rows with the highest expected throughput over all row counts, and that throughput.

    Decides about other draws than those the confidences are of: those of an earlier step.
    """
    survival = survivals(confidences)
    num_rows = len(confidences)
    expected = float(num_rows)
    best = (num_rows, expected * steps_per_s[num_rows])
    for request, depth in by_survival(survival):
        expected += survival[request][depth - 1]
        num_rows += 1
        throughput = expected * steps_per_s[num_rows]
        if throughput > best[1]:
            best = (num_rows, throughput)
    return best


def spend_rows(confidences: Sequence[Sequence[float]], num_drafts: int) -> tuple[int, ...]:
    """Drafts of each request when the `num_drafts` likeliest ones of all are verified."""
    lengths = [0] * len(confidences)
    for request, depth in by_survival(survivals(confidences))[:num_drafts]:
        lengths[request] = depth
    return tuple(lengths)


def survivals(confidences: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """By request and depth, the product of the confidences up to there."""
    rows: list[tuple[float, ...]] = []
    for of_request in confidences:
        product, row = 1.0, []
        for confidence in of_request:
            product *= confidence
            row.append(product)
        rows.append(tuple(row))
    return tuple(rows)


def by_survival(survival: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """(request, depth) by decreasing survival; of equal ones the shallower, then the earlier."""
    places = [
        (request, depth) for request, row in enumerate(survival) for depth in range(1, len(row) + 1)
    ]
    return sorted(places, key=lambda place: (-survival[place[0]][place[1] - 1], place[1], place[0]))
