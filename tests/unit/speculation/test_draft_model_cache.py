"""The draft model's own cache: what it keeps, shares, gives back and never computes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafters.draft_model.parts import DraftModelRules
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree
from tests.support.draft_models import (
    VOCAB_SIZE,
    DraftModel,
    cached_tokens,
    context,
    continuation,
    disturbed,
    make_draft_model,
    observation,
)
from tests.support.scripted_target import hashed_logits

MODEL = hashed_logits(VOCAB_SIZE)
PROMPT = [5, 6, 7, 8, 9]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
LONG = [3 + (7 * index) % 200 for index in range(50)]

MakeModel = Callable[..., DraftModel]


@pytest.fixture
def make_model() -> Iterator[MakeModel]:
    """`make_draft_model`, whose caches are proved sound at the end, open and then released."""
    models: list[DraftModel] = []

    def make(*args: object, **options: object) -> DraftModel:
        models.append(make_draft_model(*args, **options))  # type: ignore[arg-type]  # passed on
        return models[-1]

    yield make
    for model in models:
        model.kv.check_integrity()
        model.drafter.release(list(model.kv.leases))
        model.kv.check_integrity()
        assert model.kv.usage().num_leased == 0
        assert model.drafter.memory_bytes() == 0


def read_rules(max_known_rows: int) -> DraftModelRules:
    return DraftModelRules(1, 4, max_known_rows=max_known_rows, least_score=0.0)


def propose(model: DraftModel, tokens: list[int], request_id: str = "r") -> DraftTree:
    [tree] = model.drafter.propose([context(tokens, GREEDY, request_id=request_id)])
    return tree


def test_after_full_acceptance_only_the_last_draft_token_and_the_bonus_are_read(
    make_model: MakeModel,
) -> None:
    model = make_model(MODEL)
    tree = propose(model, PROMPT)
    text = [*PROMPT, *tree.tokens, *continuation(MODEL, [*PROMPT, *tree.tokens], GREEDY, 1)]
    num_passes = model.num_passes

    propose(model, text)

    assert model.row_counts()[num_passes:] == [2, *[1] * 7]
    assert cached_tokens(model) == text[:-1]


def test_after_a_rejection_the_accepted_rows_stay_and_the_others_go(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    tree = propose(model, PROMPT)
    text = [*PROMPT, *tree.tokens[:3], 299]

    model.drafter.observe([observation(text, 4)])

    assert cached_tokens(model) == text[:-1]
    assert model.kv.leases["r"].num_reserved == 0
    assert len(model.kv.leases["r"].pages) == 2
    num_passes = model.num_passes
    assert list(propose(model, text).tokens) == continuation(MODEL, text, GREEDY, 8)
    assert model.row_counts()[num_passes] == 1


def test_a_draft_is_settled_in_the_next_call_if_nothing_was_observed(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    tree = propose(model, PROMPT)
    text = [*PROMPT, *tree.tokens[:2], 299]
    propose(model, text)
    assert cached_tokens(model) == text[:-1]


def test_nothing_of_a_draft_is_kept_before_the_target_has_spoken(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    first = propose(model, PROMPT)
    assert cached_tokens(model) == PROMPT[:-1]
    second = propose(model, PROMPT)
    assert second == first
    assert cached_tokens(model) == PROMPT[:-1]


def test_a_bonus_token_that_was_drafted_but_not_verified_is_drafted_behind(
    make_model: MakeModel,
) -> None:
    """The controller may cut a draft; the target then says itself what was cut off."""
    model = make_model(MODEL)
    tree = propose(model, PROMPT)
    text = [*PROMPT, *tree.tokens[:3]]
    model.drafter.observe([observation(text, 3)])
    assert list(propose(model, text).tokens) == continuation(MODEL, text, GREEDY, 8)


def test_accepted_rows_of_a_tree_are_brought_together(make_model: MakeModel) -> None:
    rules = DraftModelRules(3, 4, least_score=0.0)
    model = make_model(disturbed(MODEL, 1.0), rules=rules)
    tree = propose(model, PROMPT)
    deepest = [node for node, depth in enumerate(tree.depths) if depth == 4]
    crooked = [node for node in deepest if tree.path(node) != tuple(range(4))]
    text = [*PROMPT, *tree.path_tokens(crooked[-1]), 299]

    model.drafter.observe([observation(text, 5)])

    # The rows of the first three nodes; the leaf never had one.
    assert cached_tokens(model) == text[:-2]
    again = make_model(disturbed(MODEL, 1.0), rules=rules)
    assert propose(model, text) == propose(again, text)


def test_a_node_whose_parent_was_not_kept_is_not_kept(make_model: MakeModel) -> None:
    model = make_model(disturbed(MODEL, 1.0), rules=DraftModelRules(3, 4, least_score=0.0))
    tree = propose(model, PROMPT)
    second = next(token for node, token in enumerate(tree.tokens) if tree.depths[node] == 2)
    text = [*PROMPT, 299, second, 298]
    model.drafter.observe([observation(text, 3)])
    assert cached_tokens(model) == PROMPT


def test_another_text_under_the_same_name_starts_anew(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    propose(model, PROMPT)
    other = [30, 31, 32]
    assert list(propose(model, other).tokens) == continuation(MODEL, other, GREEDY, 8)
    assert cached_tokens(model) == other[:-1]


def test_a_long_text_is_read_in_bounded_parts_before_anything_is_drafted(
    make_model: MakeModel,
) -> None:
    model = make_model(MODEL, rules=read_rules(20))
    trees = [propose(model, LONG) for _ in range(3)]
    assert [len(tree) for tree in trees] == [0, 0, 4]
    assert model.row_counts() == [20, 20, 10, 1, 1, 1]
    assert list(trees[-1].tokens) == continuation(MODEL, LONG, GREEDY, 4)


def test_a_text_that_grows_while_it_is_read_is_caught_up_with(make_model: MakeModel) -> None:
    model = make_model(MODEL, rules=read_rules(20))
    text = list(LONG)
    for _ in range(2):
        assert propose(model, text) is EMPTY_TREE
        text += continuation(MODEL, text, GREEDY, 1)
        model.drafter.observe([observation(text, 1)])
    assert list(propose(model, text).tokens) == continuation(MODEL, text, GREEDY, 4)


def test_short_texts_are_drafted_for_while_a_long_one_is_read(make_model: MakeModel) -> None:
    model = make_model(MODEL, rules=read_rules(20))
    trees = model.drafter.propose(
        [context(LONG, GREEDY, request_id="long"), context(PROMPT, GREEDY, request_id="short")]
    )
    assert [len(tree) for tree in trees] == [0, 4]
    assert model.row_counts() == [20, 1, 1, 1]


def test_requests_with_one_prompt_read_it_once(make_model: MakeModel) -> None:
    model = make_model(MODEL, rules=read_rules(52))
    contexts = [context(LONG, GREEDY, request_id=f"r#{index}") for index in range(3)]

    first = model.drafter.propose(contexts)
    num_passes = model.num_passes
    second = model.drafter.propose(contexts)

    assert [len(tree) for tree in first] == [4, 0, 0]
    assert [len(tree) for tree in second] == [4, 4, 4]
    assert model.row_counts()[num_passes] == 1 + 2 + 2
    assert model.kv.usage().num_hit_tokens == 2 * 48


def test_a_request_that_waits_keeps_what_it_has_read(make_model: MakeModel) -> None:
    model = make_model(MODEL, rules=read_rules(20), prefix_cache=False)
    propose(model, LONG, "long")
    short = [context([20 + index, *PROMPT], GREEDY, request_id=f"s{index}") for index in range(4)]
    trees = model.drafter.propose([context(LONG, GREEDY, request_id="long"), *short])
    assert [len(tree) for tree in trees] == [0, 4, 4, 4, 0]
    assert cached_tokens(model, "long") == LONG[:20]


def test_a_finished_text_is_found_again_only_under_its_salt(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    first = context(LONG, GREEDY, request_id="first", salt="a")
    [expected] = model.drafter.propose([first])
    model.drafter.release(["first"])

    def rows_read(salt: str) -> int:
        num_passes = model.num_passes
        [tree] = model.drafter.propose([context(LONG, GREEDY, request_id=salt, salt=salt)])
        assert tree == expected
        return model.row_counts()[num_passes]

    assert rows_read("b") == 50
    assert rows_read("a") == 2


def test_two_salts_share_no_page(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    model.drafter.propose(
        [context(LONG, GREEDY, request_id=salt, salt=salt) for salt in ("a", "b")]
    )
    pages = [set(model.kv.leases[salt].pages) for salt in ("a", "b")]
    assert not pages[0] & pages[1]


def test_a_text_that_does_not_fit_the_cache_gets_no_draft(make_model: MakeModel) -> None:
    model = make_model(MODEL, num_pages=10, page_size=4)
    trees = model.drafter.propose(
        [context(LONG, GREEDY, request_id="long"), context(PROMPT, GREEDY, request_id="short")]
    )
    assert [len(tree) for tree in trees] == [0, 8]
    assert set(model.kv.leases) == {"short"}


def test_leases_of_requests_that_are_not_asked_for_make_room(make_model: MakeModel) -> None:
    model = make_model(MODEL, num_pages=8, page_size=4)
    propose(model, LONG[:12], "first")
    propose(model, LONG[10:22], "second")
    assert len(propose(model, LONG[20:38], "third")) == 8
    assert "first" not in model.kv.leases
    assert len(propose(model, LONG[:12], "first")) == 8


def test_a_draft_ends_early_where_the_pages_end(make_model: MakeModel) -> None:
    model = make_model(MODEL, num_pages=2, page_size=4)
    # Rows of the text and of two nodes fit; the third node needs none, as nothing follows it.
    assert list(propose(model, LONG[:6]).tokens) == continuation(MODEL, LONG[:6], GREEDY, 3)


def test_a_request_without_pages_drafts_again_once_there_are_some(make_model: MakeModel) -> None:
    model = make_model(MODEL, num_pages=5, page_size=4)
    contexts = [
        context(LONG[:9], GREEDY, request_id="a"),
        context(LONG[9:18], GREEDY, request_id="b"),
    ]
    assert [bool(tree) for tree in model.drafter.propose(contexts)] == [True, False]
    model.drafter.release(["a"])
    assert len(propose(model, LONG[9:18], "b")) == 8


def test_release_frees_what_a_request_holds_and_ignores_strangers(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    propose(model, PROMPT)
    assert model.drafter.memory_bytes() > 0
    model.drafter.release(["r", "r", "stranger"])
    assert model.kv.usage().num_leased == 0


def test_observations_of_strangers_are_ignored(make_model: MakeModel) -> None:
    model = make_model(MODEL)
    model.drafter.observe([observation(PROMPT, 1, request_id="stranger")])
    assert not model.kv.leases


def test_a_pass_that_fails_leaves_a_state_that_can_be_released(make_model: MakeModel) -> None:
    model = make_model(MODEL)

    def fail(batch: object) -> None:
        if model.num_passes == 3:
            raise RuntimeError("the pass was asked to fail")

    model.runner.before_forward = fail
    with pytest.raises(RuntimeError, match="asked to fail"):
        propose(model, PROMPT)


def test_rows_of_a_tree_read_their_own_path(make_model: MakeModel) -> None:
    """Each node is what the model says after its parents, not after its siblings."""
    model = make_model(MODEL, rules=DraftModelRules(3, 3, least_score=0.0))
    [tree] = model.drafter.propose([context(PROMPT, GREEDY, max_draft_nodes=64)])
    for node in (ROOT, *range(len(tree))):
        if tree.children(node):
            best = MODEL((*PROMPT, *tree.path_tokens(node))).argsort(descending=True)[:3]
            assert list(tree.children(node)) == best.tolist()
