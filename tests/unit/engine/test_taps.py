"""Drafters are told of exactly the rows that stay, with the slots where they stay."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.engine.batching import StepBatch, build_batch
from slipstream.engine.scheduler import PlanItem, StepPlan
from slipstream.engine.taps import target_rows
from slipstream.execution.batch import ForwardOutput
from slipstream.kv.cache import KvCache
from slipstream.speculation.control import NO_DRAFT, DraftLimit
from slipstream.speculation.drafter import TargetRows
from slipstream.speculation.tree import DraftTree
from tests.support.requests import make_request

LAYER = 2
TREE = DraftTree((50, 60, 61), (-1, -1, 1), (0.5, 0.4, 0.3), (frozenset({"a"}),) * 3)


def rows_of(batch: StepBatch, paths: dict[str, list[int]]) -> list[TargetRows]:
    """Each row's state is its index in the pass."""
    states = torch.arange(len(batch.forward.tokens), dtype=torch.float32).unsqueeze(1)
    return target_rows(batch, paths, ForwardOutput(np.empty((0, 0), np.float32), {LAYER: states}))


def told(rows: TargetRows) -> list[float]:
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
    assert told(rows) == [0.0, 1.0]


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
    assert told(rows) == [0.0, 2.0, 3.0]


def test_behind_the_last_row_of_a_finished_text_is_no_token() -> None:
    request = make_request((10, 11, 12))
    lease = request.lease = KvCache(8, 4).open(request.request_id, request.tokens, "")
    lease.reserve(3)
    plan = StepPlan((PlanItem(request, 3, NO_DRAFT, is_last_chunk=True),), (), ())
    batch = build_batch(plan, {}, (LAYER,))
    lease.commit(3)

    (rows,) = rows_of(batch, {})

    assert list(rows.next_tokens) == [11, 12]
    assert told(rows) == [0.0, 1.0, 2.0]
