"""The drafters' turn in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slipstream.clock import ManualClock
from slipstream.speculation.control import FixedController
from slipstream.speculation.drafter import DraftContext, Drafter, DrafterNeeds
from slipstream.speculation.propose import Ask, Proposal, Proposer
from slipstream.speculation.tree import EMPTY_TREE, DraftTree
from tests.support.drafters import FaultyDrafter, ScriptedDrafter, draft_context
from tests.support.runs import guarded


def proposer_of(drafters: Sequence[Drafter]) -> Proposer:
    return Proposer(drafters, FixedController(), ManualClock())


def propose(proposer: Proposer, *asks: Ask) -> Proposal:
    return proposer.propose(asks, num_other_rows=len(asks), num_tokens=len(asks))


class ShortSighted(ScriptedDrafter):
    """Drafts only for sequences of up to 12 tokens."""

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(max_len=12)


def test_nobody_is_asked_for_nothing() -> None:
    drafter = ScriptedDrafter({5: [6]})
    assert propose(proposer_of([drafter])) == Proposal({}, {}, {}, 0.0)
    assert not drafter.contexts


def test_every_request_gets_its_own_draft() -> None:
    proposer = proposer_of([ScriptedDrafter({5: [6, 7], 8: [9]})])
    proposal = propose(
        proposer,
        Ask(draft_context([5], request_id="a")),
        Ask(draft_context([8], request_id="b")),
        Ask(draft_context([4], request_id="c")),
    )
    assert proposal.trees["a"].tokens == (6, 7)
    assert proposal.trees["b"].tokens == (9,)
    assert proposal.trees["c"] == EMPTY_TREE
    counts = {name: dict(of_it) for name, of_it in proposal.proposed.items()}
    assert counts == {"a": {"scripted": 2}, "b": {"scripted": 1}, "c": {"scripted": 0}}


def test_proposals_of_several_drafters_become_one_tree() -> None:
    proposer = proposer_of(
        [ScriptedDrafter({5: [6, 7]}, name="one"), ScriptedDrafter({5: [6, 8]}, name="two")]
    )
    tree = propose(proposer, Ask(draft_context([5], request_id="a"))).trees["a"]
    assert sorted(tree.tokens) == [6, 7, 8]
    assert tree.sources[tree.tokens.index(6)] == {"one", "two"}


def test_a_request_chooses_its_drafters() -> None:
    one, two = ScriptedDrafter({5: [6]}, name="one"), ScriptedDrafter({5: [7]}, name="two")
    proposer = proposer_of([one, two])
    proposal = propose(proposer, Ask(draft_context([5], request_id="a"), frozenset({"two"})))
    assert proposal.trees["a"].tokens == (7,)
    assert not one.contexts


def test_a_merged_draft_keeps_the_request_s_bounds() -> None:
    wide = {5: DraftTree((1, 2, 3), (-1, -1, -1), (0.5,) * 3, (frozenset("w"),) * 3)}
    proposer = proposer_of([ScriptedDrafter(wide), ScriptedDrafter({5: [4, 6, 7, 8]}, name="deep")])
    context = draft_context([5], request_id="a", max_draft_len=2, max_draft_nodes=4)
    tree = propose(proposer, Ask(context)).trees["a"]
    assert len(tree) <= 4
    assert tree.depth <= 2


@pytest.mark.parametrize(("length", "is_asked"), [(4, True), (5, False), (12, False)])
def test_no_draft_goes_beyond_what_the_drafter_can_read(length: int, is_asked: bool) -> None:
    drafter = ShortSighted({5: [6]})
    context = draft_context([5] * length, request_id="a", max_draft_len=8)
    proposal = propose(proposer_of([drafter]), Ask(context))
    assert bool(drafter.contexts) is is_asked
    assert bool(proposal.trees["a"]) is is_asked


def test_a_drafter_that_fails_costs_its_drafts_and_not_the_others() -> None:
    clock = ManualClock()
    bad = guarded(FaultyDrafter("raises"), clock)
    proposer = Proposer([bad, ScriptedDrafter({5: [6]})], FixedController(), clock)
    assert propose(proposer, Ask(draft_context([5], request_id="a"))).trees["a"].tokens == (6,)


def test_the_time_of_drafting_is_measured() -> None:
    clock = ManualClock()
    slow = FaultyDrafter("slow", clock=clock, delay_s=0.25)
    proposer = Proposer([slow], FixedController(), clock)
    assert propose(proposer, Ask(draft_context([5]))).draft_s == 0.25


def test_the_controller_decides_last() -> None:
    seen: list[tuple[int, int]] = []

    class KeepNothing(FixedController):
        def prune(
            self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
        ) -> dict[str, DraftTree]:
            seen.append((num_other_rows, num_tokens))
            return dict.fromkeys(trees, EMPTY_TREE)

    proposer = Proposer([ScriptedDrafter({5: [6]})], KeepNothing(), ManualClock())
    proposal = proposer.propose([Ask(draft_context([5], request_id="a"))], 70, 3)
    assert proposal.trees == {"a": EMPTY_TREE}
    assert proposal.proposed == {"a": {"scripted": 1}}
    assert seen == [(70, 3)]


def test_contexts_reach_the_drafter_as_they_are() -> None:
    drafter = ScriptedDrafter({})
    context: DraftContext = draft_context([5, 6], salt="tenant")
    propose(proposer_of([drafter]), Ask(context))
    assert drafter.contexts == [context]
