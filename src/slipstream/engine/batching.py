"""From a plan and its drafts to the flat rows of one target pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.engine.request import Request
from slipstream.engine.scheduler import PlanItem, StepPlan
from slipstream.execution.batch import Branch, ForwardBatch, IntArray
from slipstream.kv.states import StateSpan
from slipstream.speculation.tree import EMPTY_TREE, DraftTree
from slipstream.speculation.verify import Candidate


@dataclass(frozen=True, slots=True)
class StepItem:
    """One request's rows in the pass.

    Attributes:
        tree: The draft behind the anchor; empty for prompt chunks.
        first_row: Row of the pass where this request's rows start.
        first_logit_row: Row of the logits where this request's rows start.
        num_prompt_rows: Leading logits rows that are wanted for prompt log-probabilities only.
        samples: Whether a token is drawn (the pass reaches the last known token).
    """

    request: Request
    num_tokens: int
    tree: DraftTree
    first_row: int
    first_logit_row: int
    num_prompt_rows: int
    samples: bool

    @property
    def num_rows(self) -> int:
        return self.num_tokens + len(self.tree)

    def candidate(self) -> Candidate:
        """What the verifier needs to know of this item; only where `samples`."""
        request = self.request
        return Candidate(
            tree=self.tree,
            first_row=self.first_logit_row + self.num_prompt_rows,
            position=len(request.tokens),
            params=request.params,
            state=request.state,
            seed=request.seed,
        )


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A pass and whose rows it holds."""

    items: tuple[StepItem, ...]
    forward: ForwardBatch


class _Rows:
    """Flat arrays of a pass in the making."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[IntArray] = []
        self.slots: list[IntArray] = []
        self.branches: list[Branch] = []
        self.logit_rows: list[IntArray] = []
        self.num_logit_rows = 0
        self.spans: list[StateSpan] = []


def build_batch(
    plan: StepPlan, drafts: Mapping[str, DraftTree], tap_layer_ids: tuple[int, ...] = ()
) -> StepBatch:
    """Lay out all prompt chunks and draft nodes of a step.

    Args:
        drafts: Request id -> draft; requests without one are plain.
    """
    rows = _Rows()
    items = [
        _add(rows, item, drafts.get(item.request.request_id, EMPTY_TREE)) for item in plan.items
    ]
    forward = ForwardBatch(
        tokens=np.array(rows.tokens, dtype=np.int64),
        positions=_joined(rows.positions),
        slots=_joined(rows.slots),
        branches=tuple(rows.branches),
        logit_rows=_joined(rows.logit_rows),
        tap_layer_ids=tap_layer_ids,
        spans=tuple(rows.spans),
    )
    return StepBatch(tuple(items), forward)


def _add(rows: _Rows, item: PlanItem, tree: DraftTree) -> StepItem:
    request = item.request
    lease = request.lease
    assert lease is not None, "a planned request holds a lease"
    start, known_end = lease.num_tokens, lease.num_tokens + item.num_tokens
    slots = lease.slots(0, known_end + len(tree))
    first_row = len(rows.tokens)
    ends_prompt = item.is_last_chunk and item.num_tokens > 1
    span = lease.span(first_row, item.num_tokens, len(tree), ends_prompt=ends_prompt)
    if span is not None:
        assert tree.is_chain, "recurrent layers cannot branch"
        rows.spans.append(span)
    rows.tokens.extend(request.tokens[start:known_end])
    rows.tokens.extend(tree.tokens)
    rows.slots.append(slots[start:])
    if tree.is_chain:
        positions = np.arange(start, known_end + len(tree), dtype=np.int64)
        own_rows = np.arange(first_row, len(rows.tokens), dtype=np.int64)
        rows.positions.append(positions)
        rows.branches.append(Branch(own_rows, positions, slots))
    else:
        depths = np.array(tree.depths, dtype=np.int64)
        known = np.arange(start, known_end, dtype=np.int64)
        rows.positions.append(np.concatenate([known, known_end - 1 + depths]))
        rows.branches.extend(_branches(tree, first_row, start, known_end, slots))
    num_prompt_rows = _num_prompt_rows(request, item)
    num_logits = num_prompt_rows + (1 + len(tree) if item.is_last_chunk else 0)
    first = known_end - 1 - start if item.is_last_chunk else item.num_tokens
    first_wanted = first_row + first - num_prompt_rows
    rows.logit_rows.append(np.arange(first_wanted, first_wanted + num_logits, dtype=np.int64))
    step_item = StepItem(
        request=request,
        num_tokens=item.num_tokens,
        tree=tree,
        first_row=first_row,
        first_logit_row=rows.num_logit_rows,
        num_prompt_rows=num_prompt_rows,
        samples=item.is_last_chunk,
    )
    rows.num_logit_rows += num_logits
    return step_item


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _num_prompt_rows(request: Request, item: PlanItem) -> int:
    """Rows before the sampled one whose logits judge the next prompt token."""
    wants = request.params.prompt_logprobs and request.index == 0
    if not wants or request.num_output or request.group.is_prompt_cached:
        return 0
    return item.num_tokens - 1 if item.is_last_chunk else item.num_tokens


def _branches(
    tree: DraftTree, first_row: int, start: int, known_end: int, slots: IntArray
) -> list[Branch]:
    """One branch per leaf of a tree with several; a row belongs to the first that reaches it."""
    known_rows = np.arange(first_row, first_row + known_end - start, dtype=np.int64)
    known_positions = np.arange(start, known_end, dtype=np.int64)
    inner = set(tree.parents)
    leaves = [node for node in range(len(tree)) if node not in inner]
    branches: list[Branch] = []
    covered: set[int] = set()
    for leaf in leaves:
        path = np.array(tree.path(leaf), dtype=np.int64)
        new = np.array([node not in covered for node in path], dtype=bool)
        covered.update(path.tolist())
        node_rows = first_row + (known_end - start) + path
        node_positions = known_end + np.arange(len(path), dtype=np.int64)
        own_rows, own_positions = node_rows[new], node_positions[new]
        if not branches:
            own_rows = np.concatenate([known_rows, own_rows])
            own_positions = np.concatenate([known_positions, own_positions])
        branches.append(
            Branch(
                rows=own_rows,
                positions=own_positions,
                slots=np.concatenate([slots[:known_end], slots[known_end + path]]),
            )
        )
    return branches
