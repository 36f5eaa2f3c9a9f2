"""Which requests can run at all, and for how long they may wait."""

from __future__ import annotations

import pytest

from slipstream.engine.admission import RequestChecker
from slipstream.engine.messages import SpeculationOptions, Submit
from slipstream.engine.request import Phase
from slipstream.errors import ContextLengthError, InvalidRequestError
from slipstream.sampling.params import SamplingParams
from tests.support.requests import make_requests


def checker(
    *,
    max_model_len: int = 10,
    drafters: tuple[str, ...] = ("ngram",),
    queue_timeout_s: float | None = None,
    request_timeout_s: float | None = None,
) -> RequestChecker:
    return RequestChecker(100, max_model_len, drafters, queue_timeout_s, request_timeout_s)


def submit(*prompt: int, params: SamplingParams | None = None, n: int = 1) -> Submit:
    return Submit("r", prompt, params or SamplingParams(), n=n)


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    checker(max_model_len=4).check(submit(1, 2, 3))
    with pytest.raises(ContextLengthError) as caught:
        checker(max_model_len=4).check(submit(1, 2, 3, 4))
    assert caught.value.param == "prompt"
    assert caught.value.hint == "shorten the prompt"


@pytest.mark.parametrize("token", [-1, 100, 10**9])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"token id {token}; .* 0 to 99"):
        checker().check(submit(0, 99, token))


@pytest.mark.parametrize(
    "options",
    [
        SpeculationOptions(),
        SpeculationOptions(enabled=False),
        SpeculationOptions(max_draft_len=0, max_draft_nodes=0),
        SpeculationOptions(max_draft_len=1000),
        SpeculationOptions(drafters=()),
        SpeculationOptions(drafters=("ngram",)),
    ],
)
def test_sensible_options_are_taken(options: SpeculationOptions) -> None:
    checker().check(Submit("r", (1,), SamplingParams(), speculation=options))


def test_a_server_without_drafters_says_so() -> None:
    options = SpeculationOptions(drafters=("ngram",))
    with pytest.raises(InvalidRequestError, match="speculation is off on this server"):
        checker(drafters=()).check(Submit("r", (1,), SamplingParams(), speculation=options))


def test_a_request_s_own_timeout_replaces_the_server_s() -> None:
    patient = checker(request_timeout_s=60.0)
    assert patient.timeout_s(Submit("r", (1,), SamplingParams())) == 60.0
    assert patient.timeout_s(Submit("r", (1,), SamplingParams(), timeout_s=2.0)) == 2.0
    assert checker().timeout_s(Submit("r", (1,), SamplingParams())) is None


def test_nothing_is_overdue_without_limits() -> None:
    assert checker().overdue(make_requests(), now_s=1e9) is None


@pytest.mark.parametrize(("now_s", "is_overdue"), [(4.99, False), (5.0, True), (6.0, True)])
def test_a_deadline_counts_from_arrival(now_s: float, is_overdue: bool) -> None:
    requests = make_requests(arrival_s=2.0, deadline_s=5.0)
    assert (checker().overdue(requests, now_s) is not None) is is_overdue


@pytest.mark.parametrize(("now_s", "is_overdue"), [(0.99, False), (1.0, True)])
def test_the_queue_limit_counts_for_those_who_wait(now_s: float, is_overdue: bool) -> None:
    error = checker(queue_timeout_s=1.0).overdue(make_requests(), now_s)
    assert (error is not None) is is_overdue


def test_the_queue_limit_is_over_once_any_choice_was_admitted() -> None:
    requests = make_requests(n=2)
    requests[0].admitted_s = 0.5
    assert checker(queue_timeout_s=1.0).overdue(requests, 9.0) is None
    requests[0].phase = Phase.RUNNING
    assert checker(queue_timeout_s=1.0).overdue(requests, 9.0) is None
