"""What every drafter promises, whatever it drafts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import get_args

import pytest

from slipstream.config.speculation import DrafterConfig, NgramConfig, SuffixConfig
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.build import DrafterResources, build_drafter
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelRules
from slipstream.speculation.tree import DraftTree
from tests.support.draft_models import make_draft_model
from tests.support.draft_nets import make_native_drafter, make_net_drafter
from tests.support.drafters import committed, draft_context
from tests.support.mtp import make_mtp_drafter
from tests.support.native import native_kernels

VOCAB_SIZE = 300
EOS = 2
NAME = "mine"
MAX_MEMORY_BYTES = 2**20

RESOURCES = DrafterResources(VOCAB_SIZE, frozenset({EOS}), draft_models={})


def _configured(config: DrafterConfig) -> Callable[[], Drafter]:
    return lambda: build_drafter(config, RESOURCES)


def _suffix(*, tree: bool) -> Callable[[], Drafter]:
    return _configured(SuffixConfig(name=NAME, tree=tree, max_memory_bytes=MAX_MEMORY_BYTES))


CASES: dict[str, Callable[[], Drafter]] = {
    "ngram longest_earliest": _configured(NgramConfig(name=NAME, match="longest_earliest")),
    "ngram first_leftmost": _configured(NgramConfig(name=NAME, match="first_leftmost")),
    "ngram longest_latest": _configured(NgramConfig(name=NAME, match="longest_latest")),
    "suffix chain": _suffix(tree=False),
    "suffix tree": _suffix(tree=True),
    "draft_model chain": lambda: make_draft_model(name=NAME).drafter,
    "draft_model tree": lambda: (
        make_draft_model(rules=DraftModelRules(num_children=3, max_draft_len=4), name=NAME).drafter
    ),
    "eagle3 chain": lambda: make_net_drafter("eagle3", name=NAME),
    "eagle3 tree": lambda: make_net_drafter("eagle3", name=NAME, num_children=3),
    "dflash chain": lambda: make_net_drafter("dflash", name=NAME),
    "dflash 2 tree": lambda: make_net_drafter("dflash2", name=NAME, num_children=3),
    "dspark chain": lambda: make_net_drafter("dspark", name=NAME),
    "dspark tree": lambda: make_net_drafter("dspark", name=NAME, num_children=3),
    "mtp chain": lambda: make_mtp_drafter(name=NAME),
    "mtp native chain": lambda: make_mtp_drafter(
        name=NAME, kernels=native_kernels(), is_target_native=True
    ),
    "eagle3 native chain": lambda: make_native_drafter("eagle3", name=NAME),
    "eagle3 native tree": lambda: make_native_drafter("eagle3", name=NAME, num_children=3),
    "dflash native chain": lambda: make_native_drafter("dflash", name=NAME),
    "dspark native tree": lambda: make_native_drafter("dspark", name=NAME, num_children=3),
}


@pytest.fixture(params=list(CASES))
def make(request: pytest.FixtureRequest) -> Callable[[], Drafter]:
    """Makes a fresh drafter of one kind."""
    return CASES[request.param]


def _text(seed: int, length: int = 60, most: int = VOCAB_SIZE) -> list[int]:
    """A text that repeats itself with changes, over few tokens."""
    random = Random(seed)
    phrase = [random.randrange(3, most) for _ in range(12)]
    text: list[int] = []
    while len(text) < length:
        text += phrase
        phrase[random.randrange(12)] = random.randrange(3, most)
    return text[:length]


def _run(
    drafter: Drafter, text: Sequence[int], request_id: str, salt: str = "", prompt_len: int = 20
) -> list[DraftTree]:
    """Proposals while the output comes three tokens a step; the request does not finish."""
    trees = []
    for end in range(prompt_len + 1, len(text), 3):
        tokens = list(text[:end])
        drafter.observe(
            [committed(tokens, 3, request_id=request_id, prompt_len=prompt_len, salt=salt)]
        )
        context = draft_context(tokens, request_id=request_id, prompt_len=prompt_len, salt=salt)
        trees += drafter.propose([context])
    return trees


def _finish(drafter: Drafter, text: Sequence[int], request_id: str, salt: str = "") -> None:
    drafter.observe(
        [
            committed(
                list(text), 1, request_id=request_id, prompt_len=20, salt=salt, is_finished=True
            )
        ]
    )
    drafter.release([request_id])


def assert_same(trees: Sequence[DraftTree], expected: Sequence[DraftTree]) -> None:
    """Equal but for the rounding of scores: a net may compute other rows with other roundings."""
    assert len(trees) == len(expected)
    for tree, other in zip(trees, expected, strict=True):
        assert (tree.tokens, tree.parents) == (other.tokens, other.parents)
        assert tree.scores == pytest.approx(other.scores, abs=1e-4)


def test_every_configurable_kind_is_tested_here() -> None:
    members = get_args(get_args(DrafterConfig)[0])
    kinds = {member.model_fields["kind"].default for member in members}
    # A shipped drafter is one of the nets; the engine says which before anything is built.
    assert kinds - {"shipped"} == {case.split()[0] for case in CASES}


def test_it_goes_by_the_name_of_its_instance(make: Callable[[], Drafter]) -> None:
    drafter = make()
    assert drafter.name == NAME
    trees = _run(drafter, _text(1), "a")
    assert any(trees)
    assert {source for tree in trees for node in tree.sources for source in node} == {NAME}


@pytest.mark.parametrize(("max_len", "max_nodes"), [(1, 1), (1, 16), (8, 1), (3, 5), (16, 64)])
def test_proposals_stay_within_their_bounds(
    make: Callable[[], Drafter], max_len: int, max_nodes: int
) -> None:
    drafter = make()
    text = _text(2)
    for end in range(24, len(text), 5):
        context = draft_context(text[:end], max_draft_len=max_len, max_draft_nodes=max_nodes)
        (tree,) = drafter.propose([context])
        assert len(tree) <= max_nodes
        assert tree.depth <= max_len


def test_draws_come_as_a_chain_with_laws_and_scores_that_no_draw_decides(
    make: Callable[[], Drafter],
) -> None:
    drafter = make()
    context = draft_context(_text(3), params=SamplingParams(temperature=1.0))
    trees = [
        drafter.propose([replace(context, seed=seed, wants_laws=True)])[0] for seed in range(6)
    ]
    if trees[0].laws is None:  # nothing is drawn, so seeds change nothing
        assert all(tree == trees[0] and tree.laws is None for tree in trees)
        return
    assert len({tree.tokens for tree in trees}) > 1
    for tree in trees:
        assert tree.is_chain
        assert tree.laws is not None
        assert tree.scores[0] == pytest.approx(trees[0].scores[0], abs=1e-6)
        for token, law in zip(tree.tokens, tree.laws, strict=True):
            assert token in law.token_ids
            assert float(law.probs.sum()) == pytest.approx(1.0)


def test_there_is_one_tree_per_context_in_order(make: Callable[[], Drafter]) -> None:
    contexts = [draft_context(_text(seed), request_id=f"r{seed}") for seed in range(4)]
    together = make().propose(contexts)
    alone = [make().propose([context])[0] for context in contexts]
    assert_same(together, alone)
    assert make().propose([]) == []


def test_equal_histories_give_equal_proposals(make: Callable[[], Drafter]) -> None:
    one, other = make(), make()
    for drafter in (one, other):
        _run(drafter, _text(3), "earlier")
        _finish(drafter, _text(3), "earlier")
    assert _run(one, _text(4), "a") == _run(other, _text(4), "a")


def test_no_score_exceeds_its_parents(make: Callable[[], Drafter]) -> None:
    for tree in _run(make(), _text(5), "a"):
        for score, parent in zip(tree.scores, tree.parents, strict=True):
            assert parent < 0 or score <= tree.scores[parent]


def test_other_salts_change_no_proposal(make: Callable[[], Drafter]) -> None:
    alone, beside = make(), make()
    expected = _run(alone, _text(6), "first", salt="ours")
    expected += _run(alone, _text(6), "second", salt="ours")
    for seed in (6, 7):
        _run(beside, _text(seed), f"theirs{seed}", salt="theirs")
        _finish(beside, _text(seed), f"theirs{seed}", salt="theirs")
    proposed = _run(beside, _text(6), "first", salt="ours")
    _run(beside, _text(6), "running", salt="theirs")
    proposed += _run(beside, _text(6), "second", salt="ours")
    assert proposed == expected


def test_ids_beyond_the_vocabulary_are_never_proposed(make: Callable[[], Drafter]) -> None:
    text = _text(8, most=VOCAB_SIZE + 200)
    assert max(text) >= VOCAB_SIZE
    drafter = make()
    for tree in _run(drafter, text, "a"):
        assert all(token < VOCAB_SIZE for token in tree.tokens)


def test_a_request_that_was_not_asked_for_a_while_is_drafted_for_as_before(
    make: Callable[[], Drafter],
) -> None:
    text = _text(9)
    steady, pausing = make(), make()
    expected = _run(steady, text, "a")[-1]
    pausing.propose([draft_context(text[:22], request_id="a", prompt_len=20)])
    last_end = range(21, len(text), 3)[-1]
    tokens = text[:last_end]
    pausing.observe([committed(tokens, last_end - 22, request_id="a", prompt_len=20)])
    context = draft_context(tokens, request_id="a", prompt_len=20)
    assert_same(pausing.propose([context]), [expected])


def test_the_callers_token_lists_are_not_kept(make: Callable[[], Drafter]) -> None:
    text = _text(10)
    steady, scribbled = make(), make()
    expected = _run(steady, text, "a")
    proposed = []
    for end in range(21, len(text), 3):
        tokens = text[:end]
        scribbled.observe([committed(tokens, 3, request_id="a", prompt_len=20)])
        proposed += scribbled.propose([draft_context(tokens, request_id="a", prompt_len=20)])
        tokens[:] = [3] * len(tokens)
    assert proposed == expected


def test_releasing_unfinished_requests_frees_everything(make: Callable[[], Drafter]) -> None:
    drafter = make()
    empty_bytes = drafter.memory_bytes()
    for name in ("a", "b"):
        _run(drafter, _text(11), name)
    assert drafter.memory_bytes() > empty_bytes
    drafter.release(["a", "b"])
    assert drafter.memory_bytes() == empty_bytes


def test_unknown_and_released_ids_are_safe(make: Callable[[], Drafter]) -> None:
    drafter = make()
    drafter.release(["never seen"])
    drafter.observe([committed(_text(12), 1, request_id="never proposed", is_finished=True)])
    _run(drafter, _text(12), "a")
    drafter.release(["a"])
    drafter.release(["a"])
    assert any(_run(drafter, _text(12), "a"))


def test_memory_stays_bounded_over_many_requests_and_salts(make: Callable[[], Drafter]) -> None:
    drafter = make()
    for seed in range(60):
        request_id, salt = f"r{seed}", f"tenant{seed % 7}"
        text = _text(seed, length=400)
        drafter.propose([draft_context(text, request_id=request_id, prompt_len=20, salt=salt)])
        _finish(drafter, text, request_id, salt)
        assert drafter.memory_bytes() <= MAX_MEMORY_BYTES


def test_its_needs_are_not_negative(make: Callable[[], Drafter]) -> None:
    needs = make().needs
    assert needs.kv_bytes_per_token >= 0
    assert needs.weight_bytes >= 0
    assert needs.max_len is None or needs.max_len > 0
