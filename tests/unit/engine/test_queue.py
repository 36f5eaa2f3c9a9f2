"""Who is admitted next, and who is turned away."""

from __future__ import annotations

import pytest

from slipstream.engine.queue import RequestQueue
from slipstream.errors import InvalidRequestError, QueueFullError
from tests.support.requests import make_request, make_requests


def test_the_first_to_arrive_is_the_first_to_run() -> None:
    queue = RequestQueue(max_len=4, starvation_s=5.0)
    late, early = make_request(name="late", arrival_s=2.0), make_request(name="early")
    queue.add([late])
    queue.add([early])
    assert queue.best(now_s=3.0) is early


def test_a_higher_priority_goes_first() -> None:
    queue = RequestQueue(max_len=4, starvation_s=5.0)
    urgent = make_request(name="urgent", arrival_s=1.0, priority=1)
    queue.add([make_request(name="plain")])
    queue.add([urgent])
    assert queue.best(now_s=2.0) is urgent


@pytest.mark.parametrize(
    ("waited_s", "is_first"), [(9.9, False), (10.0, True), (14.9, True), (15.0, True)]
)
def test_waiting_raises_the_priority_by_a_level_each_starvation_time(
    waited_s: float, is_first: bool
) -> None:
    queue = RequestQueue(max_len=4, starvation_s=5.0)
    patient = make_request(name="patient", priority=0)
    urgent = make_request(name="urgent", arrival_s=waited_s, priority=2)
    queue.add([urgent])
    queue.add([patient])
    assert queue.best(now_s=waited_s) is (patient if is_first else urgent)


def test_nobody_waits_for_ever_behind_a_stream_of_urgent_requests() -> None:
    queue = RequestQueue(max_len=100, starvation_s=5.0)
    patient = make_request(name="patient", priority=-2)
    queue.add([patient])
    for second in range(100):
        queue.add([make_request(name=f"urgent{second}", arrival_s=float(second), priority=7)])
        best = queue.best(now_s=float(second))
        assert best is not None
        queue.remove(best)
        if best is patient:
            break
    assert 40 <= second <= 51  # (7 + 2) levels of 5 s, then the earlier arrival decides


def test_a_request_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    queue = RequestQueue(max_len=2, starvation_s=5.0)
    queue.add([make_request(name="a")])
    assert queue.has_room(1)
    assert not queue.has_room(2)
    with pytest.raises(QueueFullError, match="2 more do not fit"):
        queue.add(make_requests(name="b", n=2))
    with pytest.raises(InvalidRequestError, match="n is 3"):  # nor ever would
        queue.add(make_requests(name="c", n=3))
    assert [request.submission_id for request in queue] == ["a"]


def test_a_preempted_request_is_taken_back_even_by_a_full_queue() -> None:
    queue = RequestQueue(max_len=1, starvation_s=5.0)
    queue.add([make_request(name="waiting", arrival_s=1.0)])
    preempted = make_request(name="preempted", arrival_s=0.0)
    queue.put_back(preempted)
    assert len(queue) == 2
    assert queue.best(now_s=2.0) is preempted


def test_further_choices_wait_until_the_first_has_computed_the_prompt() -> None:
    queue = RequestQueue(max_len=8, starvation_s=5.0)
    first, second, third = make_requests(n=3)
    queue.add([first, second, third])
    assert queue.best(now_s=0.0) is first
    queue.remove(first)
    assert queue.best(now_s=100.0) is None
    first.group.is_prompt_cached = True
    assert queue.best(now_s=0.0) is second


def test_choices_that_wait_do_not_block_later_requests() -> None:
    queue = RequestQueue(max_len=8, starvation_s=5.0)
    first, second = make_requests(name="a", n=2)
    other = make_request(name="b", arrival_s=9.0)
    queue.add([first, second])
    queue.add([other])
    queue.remove(first)
    assert queue.best(now_s=9.0) is other


def test_removing_a_request_that_does_not_wait_is_harmless() -> None:
    queue = RequestQueue(max_len=1, starvation_s=5.0)
    queue.remove(make_request())
    assert queue.best(now_s=0.0) is None
