"""Drafters are told of exactly the rows that stay, where they stay, and not before they must be."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.engine.batching import StepBatch, build_batch
from slipstream.engine.request import Request
from slipstream.engine.scheduler import PlanItem, StepPlan
from slipstream.engine.taps import TapBacklog
from slipstream.execution.batch import ForwardOutput
from slipstream.kv.cache import KvCache
from slipstream.speculation.control import NO_DRAFT, DraftLimit
from slipstream.speculation.drafter import TargetRows
from slipstream.speculation.tree import DraftTree
from tests.support.requests import make_request

LAYER = 2
TREE = DraftTree((50, 60, 61), (-1, -1, 1), (0.5, 0.4, 0.3), (frozenset({"a"}),) * 3)


class Told:
    """A backlog, and what it has told."""

    def __init__(self, max_rows: int = 100) -> None:
        self.calls: list[list[TargetRows]] = []
        self.backlog = TapBacklog(lambda rows: self.calls.append(list(rows)), max_rows)

    def add(self, batch: StepBatch, paths: dict[str, list[int]], first_state: int = 0) -> None:
        """Each row's state is its index in the pass, counted from `first_state`."""
        num_rows = len(batch.forward.tokens)
        states = torch.arange(first_state, first_state + num_rows, dtype=torch.float32)
        taps = {LAYER: states.unsqueeze(1)}
        self.backlog.add(batch, paths, ForwardOutput(np.empty((0, 0), np.float32), taps))


def rows_of(batch: StepBatch, paths: dict[str, list[int]]) -> list[TargetRows]:
    """All rows of one pass, as they are told when somebody asks."""
    told = Told()
    told.add(batch, paths)
    assert not told.calls
    told.backlog.settle([item.request.request_id for item in batch.items])
    (rows,) = told.calls
    return rows


def opened(tokens: tuple[int, ...], name: str = "r") -> Request:
    """A request with a lease that holds nothing yet."""
    request = make_request(tokens, name=name)
    request.lease = KvCache(16, 4).open(request.request_id, request.tokens, "")
    return request


def decode(told: Told, requests: list[Request], first_state: int) -> None:
    """A step in which every request reads its last token and draws another."""
    items = []
    for request in requests:
        assert request.lease is not None
        request.lease.reserve(request.num_remaining)
        items.append(PlanItem(request, request.num_remaining, NO_DRAFT, is_last_chunk=True))
    batch = build_batch(StepPlan(tuple(items), (), ()), {}, (LAYER,))
    for item in items:
        assert item.request.lease is not None
        item.request.accept_token(7)
        item.request.lease.commit(item.num_tokens)
    told.add(batch, {}, first_state)


def states_of(rows: TargetRows) -> list[float]:
    """The states of the rows that stay, out of those of the whole pass."""
    states: list[float] = rows.taps[LAYER][torch.from_numpy(rows.rows)].flatten().tolist()
    return states


def test_a_prompt_chunk_is_told_with_the_tokens_behind_its_rows() -> None:
    request = make_request((10, 11, 12, 13))
    lease = request.lease = KvCache(8, 4).open(request.request_id, request.tokens, "")
    lease.reserve(2)
    plan = StepPlan((PlanItem(request, 2, NO_DRAFT, is_last_chunk=False),), (), ())
    batch = build_batch(plan, {}, (LAYER,))
    lease.commit(2)

    (rows,) = rows_of(batch, {})

    assert batch.forward.tap_layer_ids == (LAYER,)
    assert list(rows.next_tokens) == [11, 12]
    assert rows.slots.tolist() == lease.slots(0, 2).tolist()
    assert states_of(rows) == [0.0, 1.0]


def test_of_a_tree_only_the_kept_path_is_told() -> None:
    request = make_request((10, 11, 12))
    lease = request.lease = KvCache(8, 4).open(request.request_id, request.tokens, "")
    lease.reserve(2)
    lease.commit(2)
    lease.reserve(4)
    item = PlanItem(request, 1, DraftLimit(2, 3), is_last_chunk=True)
    batch = build_batch(StepPlan((item,), (), ()), {request.request_id: TREE}, (LAYER,))
    for token in (60, 61, 7):
        request.accept_token(token)
    lease.compact([0, 2, 3])
    lease.commit(3)
    lease.rollback()

    (rows,) = rows_of(batch, {request.request_id: [1, 2]})

    assert list(rows.next_tokens) == [60, 61, 7]
    assert len(rows.slots) == 5
    assert states_of(rows) == [0.0, 2.0, 3.0]


def test_behind_the_last_row_of_a_finished_text_is_no_token() -> None:
    request = make_request((10, 11, 12))
    lease = request.lease = KvCache(8, 4).open(request.request_id, request.tokens, "")
    lease.reserve(3)
    plan = StepPlan((PlanItem(request, 3, NO_DRAFT, is_last_chunk=True),), (), ())
    batch = build_batch(plan, {}, (LAYER,))
    lease.commit(3)

    (rows,) = rows_of(batch, {})

    assert list(rows.next_tokens) == [11, 12]
    assert states_of(rows) == [0.0, 1.0, 2.0]


def test_rows_of_several_steps_are_told_in_one_call() -> None:
    told, request, other = Told(), opened((10, 11, 12)), opened((20, 21), "other")
    decode(told, [request, other], first_state=0)
    decode(told, [other, request], first_state=10)
    decode(told, [request], first_state=20)

    told.backlog.settle([request.request_id])

    ((rows,),) = told.calls
    assert rows.request_id == request.request_id
    assert list(rows.next_tokens) == [11, 12, 7, 7, 7]
    assert len(rows.slots) == 5
    assert states_of(rows) == [0.0, 1.0, 2.0, 11.0, 20.0]
    assert told.backlog.request_ids == {other.request_id}


def test_each_row_is_told_once() -> None:
    told, request = Told(), opened((10, 11))
    decode(told, [request], first_state=0)
    told.backlog.settle([request.request_id])
    told.backlog.settle([request.request_id])
    decode(told, [request], first_state=10)
    told.backlog.close(request)

    assert [states_of(rows) for (rows,) in told.calls] == [[0.0, 1.0], [10.0]]


def test_when_too_many_rows_are_kept_all_are_told() -> None:
    told, request, other = Told(max_rows=4), opened((10, 11)), opened((20,), "other")
    decode(told, [request, other], first_state=0)
    decode(told, [request], first_state=10)
    assert not told.calls
    decode(told, [request], first_state=20)

    (rows,) = told.calls
    assert [states_of(item) for item in rows] == [[0.0, 1.0, 10.0, 20.0], [2.0]]
    assert not told.backlog.request_ids


def test_rows_are_told_as_soon_as_others_can_find_them_in_the_prefix_cache() -> None:
    told, request = Told(), opened((10, 11, 12, 13, 14))
    assert request.lease is not None
    request.lease.reserve(5)
    plan = StepPlan((PlanItem(request, 5, NO_DRAFT, is_last_chunk=True),), (), ())
    batch = build_batch(plan, {}, (LAYER,))
    request.lease.commit(5)
    request.lease.publish(request.tokens)

    told.add(batch, {})

    ((rows,),) = told.calls
    assert states_of(rows) == [0.0, 1.0, 2.0, 3.0, 4.0]
