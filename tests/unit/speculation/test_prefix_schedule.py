"""Rows go where they are likeliest to be accepted, as long as they pay."""

from __future__ import annotations

from slipstream.speculation.prefix_schedule import best_row_count, schedule_prefixes, spend_rows

CONFIDENCES = [[0.9, 0.5], [0.2, 0.9]]


def test_free_rows_are_all_admitted_by_decreasing_survival() -> None:
    schedule = schedule_prefixes(CONFIDENCES, dict.fromkeys(range(2, 7), 10.0))
    assert schedule.lengths == (2, 2)
    assert schedule.admitted == ((0, 1), (0, 2), (1, 1), (1, 2))
    assert schedule.throughput == schedule.tried[-1]


def test_the_first_row_that_does_not_pay_ends_the_search() -> None:
    steps = {2: 10.0, 3: 9.0, 4: 5.0, 5: 100.0, 6: 100.0}
    schedule = schedule_prefixes(CONFIDENCES, steps)
    assert schedule.lengths == (1, 0)
    assert len(schedule.tried) == 3


def test_the_search_over_all_row_counts_jumps_over_a_dip() -> None:
    steps = {2: 10.0, 3: 9.0, 4: 5.0, 5: 100.0, 6: 1.0}
    rows, _ = best_row_count(CONFIDENCES, steps)
    assert rows == 5


def test_rows_are_spent_on_prefixes() -> None:
    assert spend_rows(CONFIDENCES, 3) == (2, 1)
    assert spend_rows(CONFIDENCES, 0) == (0, 0)
