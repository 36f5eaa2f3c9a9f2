"""Drafts of a draft model: which tokens, how sure, how far."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slipstream.config.speculation import DraftModelConfig
from slipstream.errors import ConfigError
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import Candidates, RowRequest, Sampler, SamplingError
from slipstream.sampling.state import initial_state
from slipstream.speculation.build import DrafterResources, build_drafter
from slipstream.speculation.confidence import (
    NUM_RIVALS,
    acceptance_shares,
)
from slipstream.speculation.drafters.draft_model.parts import DraftModelParts, DraftModelRules
from slipstream.speculation.tree import ROOT
from tests.support.draft_models import (
    EOS,
    VOCAB_SIZE,
    context,
    continuation,
    disturbed,
    make_draft_model,
)
from tests.support.scripted_target import hashed_logits, looping_logits
from tests.support.words import text_of

PROMPT = [5, 6, 7, 8, 9]
MODEL = hashed_logits(VOCAB_SIZE)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=3, ignore_eos=True)
PENALISED = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    min_tokens=20,
    seed=11,
    ignore_eos=True,
)


def tree_rules(num_children: int = 3, max_draft_len: int = 4) -> DraftModelRules:
    return DraftModelRules(num_children, max_draft_len, least_score=0.0)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=0.0, ignore_eos=True), SAMPLED, PENALISED],
    ids=["greedy", "sampled", "penalised"],
)
def test_a_draft_model_equal_to_the_target_proposes_what_the_target_will_say(
    params: SamplingParams,
) -> None:
    model = make_draft_model(MODEL)
    text = [*PROMPT, *continuation(MODEL, PROMPT, params, 3)]

    [tree] = model.drafter.propose([context(text, params, prompt_len=len(PROMPT))])

    assert list(tree.tokens) == continuation(MODEL, PROMPT, params, 11)[3:]
    assert tree.is_chain
    model.kv.check_integrity()


def test_requests_of_a_step_share_one_pass_per_depth() -> None:
    model = make_draft_model(MODEL)
    contexts = [
        context([*PROMPT, index], SAMPLED, request_id=f"r{index}", max_draft_len=length)
        for index, length in enumerate([4, 1, 3])
    ]

    together = model.drafter.propose(contexts)

    assert model.row_counts() == [18, 2, 2, 1]
    alone = [make_draft_model(MODEL).drafter.propose([item])[0] for item in contexts]
    assert together == alone
    assert [len(tree) for tree in together] == [4, 1, 3]


def test_without_contexts_there_is_nothing_to_do() -> None:
    model = make_draft_model()
    assert model.drafter.propose([]) == []
    assert model.num_passes == 0


def test_the_smallest_of_all_bounds_ends_a_chain() -> None:
    model = make_draft_model(rules=DraftModelRules(1, 5, least_score=0.0))
    bounds = [(8, 16, 5), (4, 16, 4), (8, 3, 3)]
    for number, (max_len, max_nodes, expected) in enumerate(bounds):
        [tree] = model.drafter.propose(
            [
                context(
                    PROMPT,
                    SAMPLED,
                    request_id=f"r{number}",
                    max_draft_len=max_len,
                    max_draft_nodes=max_nodes,
                )
            ]
        )
        assert len(tree) == expected


def test_nothing_is_read_behind_the_draft_models_longest_text() -> None:
    model = make_draft_model(MODEL, max_len=8)
    lens = {
        num_tokens: len(
            model.drafter.propose([context(range(3, 3 + num_tokens), SAMPLED, request_id="r")])[0]
        )
        for num_tokens in (5, 7, 8, 9)
    }
    assert lens == {5: 3, 7: 1, 8: 0, 9: 0}
    assert max(int(batch.positions.max()) for batch in model.runner.batches) <= 7


def test_needs_name_the_share_of_the_memory_and_the_longest_text() -> None:
    needs = make_draft_model(max_len=99).drafter.needs
    assert (needs.kv_bytes_per_token, needs.weight_bytes, needs.max_len) == (64, 1000, 99)
    assert needs.target_layer_ids == ()


def test_a_tree_has_the_best_children_of_its_best_nodes() -> None:
    model = make_draft_model(MODEL, rules=tree_rules(num_children=3, max_draft_len=3))

    [tree] = model.drafter.propose([context(PROMPT, SAMPLED, max_draft_nodes=64)])

    assert [sum(depth == level for depth in tree.depths) for level in (1, 2, 3)] == [3, 9, 9]
    grandparents = {tree.parents[node] for node, depth in enumerate(tree.depths) if depth == 3}
    best = sorted(
        (node for node, depth in enumerate(tree.depths) if depth == 2),
        key=lambda node: -tree.scores[node],
    )[:3]
    assert grandparents == set(best)


def test_siblings_come_in_the_order_of_the_perturbed_logits() -> None:
    model = make_draft_model(MODEL, rules=tree_rules(num_children=4, max_draft_len=1))
    [tree] = model.drafter.propose([context(PROMPT, SAMPLED)])
    row = RowRequest(SAMPLED, initial_state(SAMPLED, PROMPT), SAMPLED.seed, len(PROMPT))
    best = Sampler(VOCAB_SIZE, ()).top_candidates(MODEL(tuple(PROMPT))[None], [row], 4)
    assert list(tree.tokens) == best.ids[0].tolist()
    assert list(tree.scores) == sorted(tree.scores, reverse=True)


def test_a_tree_keeps_the_likeliest_nodes_within_its_bound() -> None:
    whole = make_draft_model(MODEL, rules=tree_rules())
    [everything] = whole.drafter.propose([context(PROMPT, SAMPLED, max_draft_nodes=128)])
    model = make_draft_model(MODEL, rules=tree_rules())

    [tree] = model.drafter.propose([context(PROMPT, SAMPLED, max_draft_nodes=7)])

    assert len(tree) == 7
    assert sorted(tree.scores) == sorted(everything.scores)[-7:]


def test_a_nodes_score_never_exceeds_its_parents() -> None:
    model = make_draft_model(MODEL, rules=tree_rules())
    [tree] = model.drafter.propose([context(PROMPT, PENALISED, max_draft_nodes=40)])
    for node, parent in enumerate(tree.parents):
        assert 0.0 <= tree.scores[node] <= (1.0 if parent == ROOT else tree.scores[parent])


def test_a_tree_holds_the_chain_and_is_right_more_often() -> None:
    draft = disturbed(MODEL, 1.0)
    chains = make_draft_model(draft, rules=DraftModelRules(1, 1, least_score=0.0))
    trees = make_draft_model(draft, rules=DraftModelRules(4, 1, least_score=0.0))
    contexts = [
        context([*PROMPT, token], SAMPLED, request_id=str(token)) for token in range(3, 203)
    ]
    said = [continuation(MODEL, item.tokens, SAMPLED, 1)[0] for item in contexts]

    chain_hits = tree_hits = 0
    for item, token in zip(contexts, said, strict=True):
        [chain], [tree] = chains.drafter.propose([item]), trees.drafter.propose([item])
        assert chain.tokens[0] == tree.tokens[0]
        chain_hits += token in chain.tokens
        tree_hits += token in tree.tokens

    assert 80 <= chain_hits < tree_hits - 30


def test_drafting_ends_where_the_path_becomes_unlikely() -> None:
    rules = DraftModelRules(1, 8, least_score=0.3)
    model = make_draft_model(MODEL, rules=rules)
    endless = make_draft_model(MODEL)
    [tree] = model.drafter.propose([context(PROMPT, SAMPLED)])
    [whole] = endless.drafter.propose([context(PROMPT, SAMPLED)])
    num_likely = sum(score >= 0.3 for score in whole.scores)
    assert 0 < num_likely < len(whole)
    assert tree.tokens == whole.tokens[:num_likely]
    assert model.num_passes <= num_likely + 1


def test_nothing_is_drafted_behind_a_token_that_ends_the_output() -> None:
    loop = looping_logits(VOCAB_SIZE, [10, 11, EOS, 12])
    model = make_draft_model(loop)

    def tokens_of(params: SamplingParams, request_id: str) -> tuple[int, ...]:
        [tree] = model.drafter.propose([context([10], params, request_id=request_id)])
        return tree.tokens[:4]

    assert tokens_of(SamplingParams(temperature=0.0), "a") == (11, EOS)
    stopping = SamplingParams(temperature=0.0, stop_token_ids=(11,))
    assert tokens_of(stopping, "b") == (11,)
    ignoring = SamplingParams(temperature=0.0, ignore_eos=True)
    assert tokens_of(ignoring, "c") == (11, EOS, 12, 10)


def test_padding_of_the_draft_models_head_is_never_proposed() -> None:
    def padded(tokens: tuple[int, ...]) -> torch.Tensor:
        return torch.cat([MODEL(tokens), torch.full((20,), 100.0)])

    model = make_draft_model(padded, rules=tree_rules())
    [tree] = model.drafter.propose([context(PROMPT, SAMPLED)])
    assert tree
    assert max(tree.tokens) < VOCAB_SIZE


def test_a_row_without_a_token_gets_no_draft_and_disturbs_nobody() -> None:
    nothing_left = SamplingParams(allowed_token_ids=(50,), bad_words=(text_of(50),))
    model = make_draft_model(MODEL)
    contexts = [
        context(PROMPT, SAMPLED, request_id="a"),
        context(PROMPT, nothing_left, request_id="b"),
        context(PROMPT, PENALISED, request_id="c"),
    ]

    trees = model.drafter.propose(contexts)

    assert [len(tree) for tree in trees] == [8, 0, 8]
    assert list(trees[2].tokens) == continuation(MODEL, PROMPT, PENALISED, 8)


def test_fewer_tokens_than_children_are_proposed_where_no_more_can_be_drawn() -> None:
    params = SamplingParams(temperature=1.0, top_k=2)
    model = make_draft_model(MODEL, rules=tree_rules(num_children=4, max_draft_len=1))
    [tree] = model.drafter.propose([context(PROMPT, params)])
    assert len(tree) == 2


def test_logits_that_are_not_finite_are_a_fault_of_the_drafter() -> None:
    model = make_draft_model(lambda tokens: torch.full((VOCAB_SIZE,), math.nan))
    with pytest.raises(SamplingError, match="not finite"):
        model.drafter.propose([context(PROMPT, SAMPLED)])
    model.drafter.release(["r"])
    model.kv.check_integrity()


def test_shares_of_a_row_add_up_and_follow_the_perturbed_logits() -> None:
    logits = torch.stack([MODEL((3, 4, index)) for index in range(20)])
    greedy = SamplingParams(temperature=0.0)
    for params in (greedy, SAMPLED, SamplingParams(temperature=0.05, top_k=3)):
        rows = [RowRequest(params, initial_state(params, ()), 7, index) for index in range(20)]
        best = Sampler(VOCAB_SIZE, ()).top_candidates(logits, rows, NUM_RIVALS)
        shares = acceptance_shares(rows, best)
        assert shares.sum(axis=1) == pytest.approx(np.ones(20))
        assert (np.diff(shares, axis=1) <= 1e-9).all()
        assert (shares[best.ids < 0] == 0.0).all()


def test_a_sure_thing_has_the_whole_share() -> None:
    best = Candidates(np.array([[4, -1]]), np.array([[1.0, 0.0]], dtype=np.float32))
    row = RowRequest(SAMPLED, initial_state(SAMPLED, ()), 0, 0)
    assert acceptance_shares([row], best).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_scores_are_close_to_the_rate_of_acceptance(temperature: float) -> None:
    """Of a draft model whose logits are off by a standard deviation of about 0.6."""
    model = make_draft_model(disturbed(MODEL, 0.5), rules=DraftModelRules(2, 1, least_score=0.0))
    params = SamplingParams(temperature=temperature, seed=1, ignore_eos=True)
    claimed, hits = np.zeros(2), np.zeros(2)
    for token in range(3, VOCAB_SIZE):
        text = [*PROMPT, token, token]
        [tree] = model.drafter.propose([context(text, params, request_id=str(token))])
        [said] = continuation(MODEL, text, params, 1)
        claimed += tree.scores
        hits += [candidate == said for candidate in tree.tokens]
    assert claimed / (VOCAB_SIZE - 3) == pytest.approx(hits / (VOCAB_SIZE - 3), abs=0.15)


def test_the_configuration_builds_a_drafter_from_the_loaded_parts() -> None:
    model = make_draft_model(MODEL)
    parts = DraftModelParts(model.runner, model.kv, Sampler(VOCAB_SIZE, (EOS,)), max_len=64)
    config = DraftModelConfig(name="small", source="somewhere", num_children=2, max_draft_len=2)

    drafter = build_drafter(
        config, DrafterResources(VOCAB_SIZE, frozenset((EOS,)), {"small": parts})
    )

    [tree] = drafter.propose([context(PROMPT, SAMPLED)])
    assert drafter.name == "small"
    assert tree.depth == 2
    assert max(len(tree.children(node)) for node in range(ROOT, len(tree))) == 2
    assert tree.sources[0] == frozenset(("small",))


def test_a_configured_draft_model_that_is_not_loaded_is_named() -> None:
    config = DraftModelConfig(name="small", source="somewhere")
    with pytest.raises(ConfigError, match='"small" of kind draft_model'):
        build_drafter(config, DrafterResources(VOCAB_SIZE, frozenset((EOS,)), {}))
