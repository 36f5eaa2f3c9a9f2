"""What drafts have turned out to be worth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.acceptance import MAX_DEPTH, DraftOutcome, DraftRecord, worths
from slipstream.speculation.tree import ROOT, DraftTree


def chain(length: int, score: float = 1.0) -> DraftTree:
    return DraftTree.chain(list(range(length)), [score] * length, "test")


def star(width: int, score: float = 1.0) -> DraftTree:
    return DraftTree(
        tokens=tuple(range(width)),
        parents=(ROOT,) * width,
        scores=(score,) * width,
        sources=(frozenset({"test"}),) * width,
    )


def worths_by(record: DraftRecord, tree: DraftTree, others: DraftRecord) -> list[float]:
    """What a tree is worth whose nodes are all of one drafter."""
    return worths(tree, [record.truth(depth, others.truth(depth)) for depth in tree.depths])


def observe(
    record: DraftRecord, tree: DraftTree, path: tuple[int, ...], price: float, decay: float
) -> None:
    record.observe(DraftOutcome.of(tree, range(len(tree)), path), price, decay)


def test_without_evidence_claims_are_believed() -> None:
    tree = DraftTree.chain([1, 2, 3], [0.9, 0.5, 0.2], "test")
    assert worths_by(DraftRecord(), tree, DraftRecord()) == [0.9, 0.5, 0.2]


def test_claims_that_do_not_come_true_are_believed_less_each_time() -> None:
    record = DraftRecord()
    found = []
    for _ in range(20):
        found.append(worths_by(record, chain(1), DraftRecord())[0])
        observe(record, chain(1), (), 0.0, 0.9)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.15


def test_claims_that_come_true_stay_believed() -> None:
    record = DraftRecord()
    for _ in range(20):
        observe(record, chain(3), (0, 1, 2), 0.0, 0.9)
    assert worths_by(record, chain(3), DraftRecord()) == pytest.approx([1.0, 1.0, 1.0])


def test_a_modest_drafter_that_is_always_right_is_believed_more() -> None:
    record = DraftRecord()
    for _ in range(50):
        observe(record, chain(1, 0.2), (0,), 0.0, 0.9)
    assert worths_by(record, chain(1, 0.2), DraftRecord())[0] > 0.5


def test_depths_are_judged_apart() -> None:
    record = DraftRecord()
    for _ in range(20):
        observe(record, chain(2), (0,), 0.0, 0.9)
    first, second = worths_by(record, chain(2), DraftRecord())
    assert first > 0.9
    assert second < 0.2


def test_the_past_fades_by_draft_and_not_by_node() -> None:
    wide, narrow = DraftRecord(), DraftRecord()
    observe(wide, star(8, 0.125), (), 0.0, 0.9)
    observe(narrow, chain(1, 1.0), (), 0.0, 0.9)
    assert wide.claimed[0] == pytest.approx(narrow.claimed[0])


def test_siblings_together_are_worth_at_most_their_parent() -> None:
    found = worths_by(DraftRecord(), star(8), DraftRecord())
    assert sum(found) == pytest.approx(1.0)


def test_a_new_request_expects_what_others_have_met() -> None:
    others = DraftRecord()
    for _ in range(50):
        observe(others, chain(1), (), 0.0, 0.98)
    assert worths_by(DraftRecord(), chain(1), others)[0] < 0.1


def test_own_evidence_outweighs_that_of_others() -> None:
    others, record = DraftRecord(), DraftRecord()
    for _ in range(50):
        observe(others, chain(1), (), 0.0, 0.98)
    for _ in range(10):
        observe(record, chain(1), (0,), 0.0, 0.9)
    assert worths_by(record, chain(1), others)[0] > 0.8


def test_drafts_that_cost_more_than_they_bring_are_a_loss() -> None:
    record = DraftRecord()
    assert not record.is_loss
    for _ in range(30):
        observe(record, chain(2), (0,), 1.5, 0.9)
    assert record.is_loss
    for _ in range(30):
        observe(record, chain(2), (0, 1), 1.5, 0.9)
    assert not record.is_loss


def test_depths_beyond_the_table_share_its_last_place() -> None:
    record = DraftRecord()
    long = chain(MAX_DEPTH + 5)
    observe(record, long, (), 0.0, 0.9)
    assert len(worths_by(record, long, DraftRecord())) == MAX_DEPTH + 5


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    edges: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(1, 20))):
        parent = draw(st.integers(ROOT, len(edges) - 1)) if edges else ROOT
        edges.setdefault((parent, draw(st.integers(0, 3))), len(edges))
    parents, tokens = zip(*edges, strict=True)
    scores = tuple(draw(st.floats(0.0, 1.0)) for _ in edges)
    return DraftTree(tokens, parents, scores, (frozenset({"test"}),) * len(edges))


@settings(max_examples=60, deadline=None)
@given(tree=trees(), others=st.lists(trees(), max_size=4), seed=st.integers(0, 5))
def test_worths_are_probabilities_that_fall_from_parent_to_child(
    tree: DraftTree, others: list[DraftTree], seed: int
) -> None:
    record = DraftRecord()
    for number, other in enumerate(others):
        path = other.path((seed + number) % len(other))
        observe(record, other, path, 0.5, 0.9)
    found = worths_by(record, tree, DraftRecord())
    for node, worth in enumerate(found):
        parent = tree.parents[node]
        assert 0.0 <= worth <= (1.0 if parent == ROOT else found[parent])
