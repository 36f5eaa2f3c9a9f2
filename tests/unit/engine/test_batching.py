"""From a plan and its drafts to the flat rows of one pass."""

from __future__ import annotations

import numpy as np

from slipstream.engine.batching import build_batch
from slipstream.engine.request import Request
from slipstream.engine.scheduler import PlanItem, StepPlan
from slipstream.kv.cache import KvCache
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.control import NO_DRAFT, DraftLimit
from slipstream.speculation.tree import DraftTree
from tests.support.requests import make_request

TREE = DraftTree(
    tokens=(50, 60, 51, 61),
    parents=(-1, -1, 0, 1),
    scores=(0.5,) * 4,
    sources=(frozenset({"test"}),) * 4,
)


def leased(kv: KvCache, request: Request, num_committed: int, num_reserved: int) -> Request:
    request.lease = kv.open(request.request_id, request.tokens, "")
    request.lease.reserve(num_committed)
    request.lease.commit(num_committed)
    request.lease.reserve(num_reserved)
    return request


def plan_of(*items: PlanItem) -> StepPlan:
    return StepPlan(items, (), ())


def test_a_prompt_chunk_asks_for_the_logits_of_its_last_row() -> None:
    request = leased(KvCache(8, 4), make_request((10, 11, 12)), 0, 3)
    batch = build_batch(plan_of(PlanItem(request, 3, NO_DRAFT, is_last_chunk=True)), {})
    assert batch.forward.tokens.tolist() == [10, 11, 12]
    assert batch.forward.positions.tolist() == [0, 1, 2]
    assert batch.forward.logit_rows.tolist() == [2]
    assert batch.items[0].candidate().position == 3


def test_a_chunk_in_the_middle_of_a_prompt_asks_for_no_logits() -> None:
    request = leased(KvCache(8, 4), make_request((10, 11, 12)), 0, 2)
    batch = build_batch(plan_of(PlanItem(request, 2, NO_DRAFT, is_last_chunk=False)), {})
    assert batch.forward.logit_rows.tolist() == []
    assert not batch.items[0].samples


def test_prompt_logprobs_ask_for_the_logits_of_every_row() -> None:
    params = SamplingParams(prompt_logprobs=True)
    request = leased(KvCache(8, 4), make_request((10, 11, 12), params), 0, 3)
    batch = build_batch(plan_of(PlanItem(request, 3, NO_DRAFT, is_last_chunk=True)), {})
    assert batch.forward.logit_rows.tolist() == [0, 1, 2]
    assert batch.items[0].num_prompt_rows == 2
    assert batch.items[0].candidate().first_row == 2


def test_draft_nodes_lie_behind_the_anchor_at_their_depth() -> None:
    request = leased(KvCache(8, 4), make_request((10, 11, 12)), 2, 5)
    item = PlanItem(request, 1, DraftLimit(2, 4), is_last_chunk=True)
    batch = build_batch(plan_of(item), {request.request_id: TREE})
    assert batch.forward.tokens.tolist() == [12, 50, 60, 51, 61]
    assert batch.forward.positions.tolist() == [2, 3, 3, 4, 4]
    assert batch.forward.logit_rows.tolist() == [0, 1, 2, 3, 4]


def test_each_leaf_has_a_branch_and_each_row_lies_in_one() -> None:
    kv = KvCache(8, 4)
    request = leased(kv, make_request((10, 11, 12)), 2, 5)
    item = PlanItem(request, 1, DraftLimit(2, 4), is_last_chunk=True)
    batch = build_batch(plan_of(item), {request.request_id: TREE})
    assert request.lease is not None
    slots = request.lease.slots(0, 7)
    first, second = batch.forward.branches
    assert first.rows.tolist() == [0, 1, 3]
    assert first.slots.tolist() == slots[[0, 1, 2, 3, 5]].tolist()
    assert second.rows.tolist() == [2, 4]
    assert second.slots.tolist() == slots[[0, 1, 2, 4, 6]].tolist()
    assert second.positions.tolist() == [3, 4]


def test_requests_follow_each_other_in_the_pass() -> None:
    kv = KvCache(16, 4)
    decoding = leased(kv, make_request((10, 11, 12), name="a"), 2, 5)
    prefill = leased(kv, make_request((20, 21), name="b"), 0, 2)
    batch = build_batch(
        plan_of(
            PlanItem(decoding, 1, DraftLimit(2, 4), is_last_chunk=True),
            PlanItem(prefill, 2, NO_DRAFT, is_last_chunk=True),
        ),
        {decoding.request_id: TREE},
    )
    assert batch.forward.tokens.tolist() == [12, 50, 60, 51, 61, 20, 21]
    assert batch.items[1].first_logit_row == 5
    assert batch.forward.logit_rows.tolist() == [0, 1, 2, 3, 4, 6]
    rows = np.concatenate([branch.rows for branch in batch.forward.branches])
    assert sorted(rows.tolist()) == list(range(7))
    assert batch.items[0].num_rows == 5
    assert batch.items[1].num_rows == 2


def test_a_request_without_a_draft_is_a_tree_with_only_its_root() -> None:
    request = leased(KvCache(8, 4), make_request((10, 11, 12)), 2, 9)
    item = PlanItem(request, 1, DraftLimit(8, 8), is_last_chunk=True)
    batch = build_batch(plan_of(item), {})
    assert batch.forward.tokens.tolist() == [12]
    assert len(batch.items[0].tree) == 0
