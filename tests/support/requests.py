"""Requests outside an engine, for tests of the parts that move them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream.engine.messages import Submit
from slipstream.engine.request import Group, Request
from slipstream.sampling.params import SamplingParams
from tests.support.engine import tiny_tokenizer


def make_requests(
    prompt: Sequence[int] = (10, 11, 12),
    params: SamplingParams | None = None,
    *,
    name: str = "r",
    n: int = 1,
    arrival_s: float = 0.0,
    deadline_s: float | None = None,
    max_len: int = 256,
    **fields: object,  # those of Submit
) -> list[Request]:
    """The choices of one submission, as the engine makes them."""
    submit = Submit(name, tuple(prompt), params or SamplingParams(temperature=0.0), n=n)
    group = Group(
        submit=msgspec.structs.replace(submit, **fields),
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        num_unfinished=n,
    )
    return [
        Request(group, index, seed=index, tokenizer=tiny_tokenizer(), max_len=max_len)
        for index in range(n)
    ]


def make_request(
    prompt: Sequence[int] = (10, 11, 12),
    params: SamplingParams | None = None,
    *,
    name: str = "r",
    arrival_s: float = 0.0,
    max_len: int = 256,
    priority: int = 0,
) -> Request:
    """A submission of one choice."""
    return make_requests(
        prompt, params, name=name, arrival_s=arrival_s, max_len=max_len, priority=priority
    )[0]
