"""A drafter's faults stay with the drafter."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slipstream.clock import ManualClock
from slipstream.speculation.drafter import Drafter, TargetRows
from slipstream.speculation.guard import GuardedDrafter, GuardLimits
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftLaw, DraftTree
from tests.support.drafters import (
    FaultKind,
    FaultyDrafter,
    RecordedEvents,
    RecordingDrafter,
    ScriptedDrafter,
    committed,
    draft_context,
)

VOCAB_SIZE = 100
CONTEXTS = [draft_context([1, 2, 3], request_id=name) for name in ("a", "b")]
LIMITS = GuardLimits(vocab_size=VOCAB_SIZE, budget_s=1.0, backoff_s=2.0, max_faults=3, num_good=2)


def _guard(
    drafter: Drafter, clock: ManualClock, events: RecordedEvents | None = None
) -> GuardedDrafter:
    return GuardedDrafter(drafter, LIMITS, clock, events or RecordedEvents())


def test_sound_proposals_pass_unchanged() -> None:
    drafter = ScriptedDrafter({3: [4, 5]})
    trees = _guard(drafter, ManualClock()).propose(CONTEXTS)
    assert [tree.tokens for tree in trees] == [(4, 5), (4, 5)]


def test_name_and_needs_are_the_drafters() -> None:
    guard = _guard(ScriptedDrafter({}, name="mine"), ManualClock())
    assert guard.name == "mine"
    assert guard.needs == ScriptedDrafter({}).needs


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("raises", "raised"),
        ("slow", "timed_out"),
        ("too_few", "invalid"),
        ("too_many", "invalid"),
        ("not_a_tree", "invalid"),
        ("unknown_token", "invalid"),
        ("too_deep", "invalid"),
        ("too_wide", "invalid"),
    ],
)
def test_a_faulty_proposal_benches_the_drafter_and_requests_go_on_plainly(
    fault: FaultKind, kind: str
) -> None:
    clock, events = ManualClock(), RecordedEvents()
    drafter = FaultyDrafter(fault, clock=clock)
    guard = _guard(drafter, clock, events)
    assert guard.propose(CONTEXTS) == [EMPTY_TREE, EMPTY_TREE]
    assert guard.is_benched
    assert events.faults == [kind]
    assert events.active == [False]


def test_a_token_id_at_the_end_of_the_vocabulary_is_unknown() -> None:
    last = ScriptedDrafter({3: [VOCAB_SIZE - 1]})
    beyond = ScriptedDrafter({3: [VOCAB_SIZE]})
    assert _guard(last, ManualClock()).propose(CONTEXTS)[0]
    assert not _guard(beyond, ManualClock()).propose(CONTEXTS)[0]


def _drawn(*tokens: int) -> DraftTree:
    law = DraftLaw(np.array([4, 5]), np.array([0.5, 0.5]))
    chain = DraftTree.chain(tokens, [0.5] * len(tokens), "scripted")
    return replace(chain, laws=(law,) * len(tokens))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (math.nan, 5)},
        {"tokens": (4.5, 5)},
        {"sources": (frozenset(), frozenset())},
        {"sources": (frozenset(("nobody",)), frozenset(("nobody",)))},
        {"sources": (None, None)},
    ],
    ids=["NaN", "fraction", "no source", "other source", "None"],
)
def test_nodes_that_nobody_can_verify_or_count_bench_the_drafter(
    changes: dict[str, Any],  # Any: of wrong types
) -> None:
    tree = replace(DraftTree.chain([4, 5], [0.9, 0.8], "scripted"), **changes)
    events = RecordedEvents()
    guard = _guard(ScriptedDrafter({3: tree}), ManualClock(), events)
    assert guard.propose(CONTEXTS) == [EMPTY_TREE, EMPTY_TREE]
    assert events.faults == ["invalid"]


@pytest.mark.parametrize(
    ("token_ids", "probs"),
    [
        ([4, VOCAB_SIZE], [0.5, 0.5]),
        ([-1, 4], [0.5, 0.5]),
        ([4, 4], [0.5, 0.5]),
        ([4, 5], [0.5, math.nan]),
        ([4, 5], [1.5, -0.5]),
        ([4, 5], [0.5, 0.25]),
        ([4, 5], [1.0]),
    ],
)
def test_laws_that_are_no_distributions_bench_the_drafter(
    token_ids: list[int], probs: list[float]
) -> None:
    law = DraftLaw(np.array(token_ids, np.int64), np.array(probs))
    tree = replace(DraftTree.chain([4], [0.9], "scripted"), laws=(law,))
    events = RecordedEvents()
    guard = _guard(ScriptedDrafter({3: tree}), ManualClock(), events)
    contexts = [replace(context, wants_laws=True) for context in CONTEXTS]
    assert guard.propose(contexts) == [EMPTY_TREE, EMPTY_TREE]
    assert events.faults == ["invalid"]


def test_draws_pass_where_they_are_asked_for() -> None:
    drawn = _drawn(4, 5)
    contexts = [replace(context, wants_laws=True) for context in CONTEXTS]
    trees = _guard(ScriptedDrafter({3: drawn}), ManualClock()).propose(contexts)
    assert trees == [drawn, drawn]
    assert trees[0].laws == drawn.laws


@pytest.mark.parametrize(
    ("tree", "is_asked"),
    [
        (_drawn(4, 5), False),
        (_drawn(4, 6), True),
        (replace(_drawn(4, 5), parents=(ROOT, ROOT)), True),
    ],
    ids=["unasked", "not from its law", "a tree"],
)
def test_draws_that_cannot_be_judged_bench_the_drafter(tree: DraftTree, is_asked: bool) -> None:
    events = RecordedEvents()
    contexts = [replace(context, wants_laws=is_asked) for context in CONTEXTS]
    trees = _guard(ScriptedDrafter({3: tree}), ManualClock(), events).propose(contexts)
    assert trees == [EMPTY_TREE, EMPTY_TREE]
    assert events.faults == ["invalid"]


def test_a_benched_drafter_is_not_asked() -> None:
    clock = ManualClock()
    drafter = FaultyDrafter("raises")
    guard = _guard(drafter, clock)
    guard.propose(CONTEXTS)
    clock.advance(LIMITS.backoff_s - 0.1)
    guard.propose(CONTEXTS)
    guard.observe([committed([1, 2], 1)])
    assert drafter.num_proposals == 1
    assert not drafter.observations


def test_it_is_tried_again_after_the_back_off_and_reported_active() -> None:
    clock, events = ManualClock(), RecordedEvents()
    drafter = FaultyDrafter("raises", is_failing=lambda call: call == 0)
    guard = _guard(drafter, clock, events)
    guard.propose(CONTEXTS)
    clock.advance(LIMITS.backoff_s)
    guard.propose(CONTEXTS)
    assert not guard.is_benched
    assert events.active == [False, True]


def test_the_back_off_doubles_with_each_fault_in_a_row() -> None:
    clock = ManualClock()
    guard = _guard(FaultyDrafter("raises"), clock)
    guard.propose(CONTEXTS)
    clock.advance(LIMITS.backoff_s)
    guard.propose(CONTEXTS)
    clock.advance(2 * LIMITS.backoff_s - 0.1)
    assert guard.is_benched
    clock.advance(0.1)
    assert not guard.is_benched


def test_after_too_many_faults_it_stays_benched() -> None:
    clock = ManualClock()
    drafter = FaultyDrafter("raises")
    guard = _guard(drafter, clock)
    for _ in range(10):
        guard.propose(CONTEXTS)
        clock.advance(1e6)
    assert guard.is_benched_for_good
    assert drafter.num_proposals == LIMITS.max_faults


def test_good_proposals_clear_the_record() -> None:
    clock = ManualClock()
    drafter = FaultyDrafter("raises", is_failing=lambda call: call % 3 == 0)
    guard = _guard(drafter, clock)
    for _ in range(30):
        guard.propose(CONTEXTS)
        clock.advance(LIMITS.backoff_s)
    assert not guard.is_benched_for_good


def test_benching_drops_the_state_of_all_live_requests() -> None:
    drafter = FaultyDrafter("raises")
    _guard(drafter, ManualClock()).propose(CONTEXTS)
    assert drafter.released == ["a", "b"]


def test_release_reaches_a_benched_drafter() -> None:
    drafter = FaultyDrafter("raises")
    guard = _guard(drafter, ManualClock())
    guard.propose(CONTEXTS)
    drafter.released.clear()
    guard.release(["a"])
    assert drafter.released == ["a"]


@pytest.mark.parametrize("fault", ["observe_raises", "release_raises"])
def test_faults_outside_proposals_bench_too(fault: FaultKind) -> None:
    events = RecordedEvents()
    guard = _guard(FaultyDrafter(fault), ManualClock(), events)
    guard.observe([committed([1, 2], 1, request_id="a")])
    guard.release(["a"])
    assert guard.is_benched
    assert set(events.faults) == {"raised"}


def test_a_drafter_that_cannot_tell_its_size_counts_as_empty() -> None:
    class Sizeless(RecordingDrafter):
        def memory_bytes(self) -> int:
            raise RuntimeError("no size")

    assert _guard(Sizeless(), ManualClock()).memory_bytes() == 0


def test_each_benching_is_logged_once_with_name_reason_and_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="slipstream.speculation")
    guard = _guard(FaultyDrafter("raises", name="mine"), ManualClock())
    guard.propose(CONTEXTS)
    guard.propose(CONTEXTS)
    (record,) = caplog.records
    message = record.getMessage()
    assert 'drafter "mine" raised' in message
    assert "for 2 s" in message
    assert "asked to fail" in message
    assert record.exc_info is not None


class _Reader(ScriptedDrafter):
    """Reads the target's states, and fails at it if told so."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__({3: [4]})
        self.fails = fails
        self.told: list[TargetRows] = []

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        self.told += rows
        if self.fails:
            raise RuntimeError("cannot read")


ROWS = [TargetRows("a", np.arange(2), (1, 2), np.arange(2), {})]


def test_the_targets_states_reach_a_drafter_that_reads_them_and_no_other() -> None:
    reader = _Reader(fails=False)
    _guard(reader, ManualClock()).absorb(ROWS)
    _guard(ScriptedDrafter({}), ManualClock()).absorb(ROWS)
    assert reader.told == ROWS


def test_a_fault_while_reading_benches_the_drafter_but_it_keeps_being_told() -> None:
    reader, events = _Reader(fails=True), RecordedEvents()
    guard = _guard(reader, ManualClock(), events)
    guard.absorb(ROWS)
    assert guard.is_benched
    assert guard.propose(CONTEXTS) == [EMPTY_TREE] * 2
    reader.fails = False
    guard.absorb(ROWS)
    assert len(reader.told) == 2
