"""Verification by rejection leaves the law of the answer as it is, whatever drafts and however far.

Samples come from the whole engine: real scheduler, streams, verification and commit. Each fault
that is planted here bends the law enough to be seen, so the tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from slipstream.engine.messages import Tokens
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import advance
from slipstream.speculation import verification
from slipstream.speculation.control import FixedController
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.drafter import DraftContext, Drafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelRules
from slipstream.speculation.tree import EMPTY_TREE, DraftLaw, DraftTree
from slipstream.speculation.verification import RejectionVerification, Rule
from tests.support.draft_models import make_draft_model
from tests.support.drafters import RecordingDrafter, ScriptedDrafter
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.scripted_target import LogitsOf
from tests.support.statistics import excess, law_of

FAVOURITES = (20, 40, 60)
PROMPT = (10, 20, 30)
NUM_TOKENS = 4
RULES: tuple[Rule, ...] = ("chain", "block")
PLAIN = SamplingParams(temperature=1.0)
SHAPED = SamplingParams(
    temperature=0.8, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3
)


def few_tokens(seed: int, scale: float = 1.0) -> LogitsOf:
    """A model that says three tokens only, by the last two tokens."""

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        generator = np.random.default_rng([seed, *tokens[-2:]])
        logits = torch.full((VOCAB_SIZE,), -torch.inf)
        logits[list(FAVOURITES)] = torch.tensor(
            generator.normal(0.0, scale, len(FAVOURITES)), dtype=torch.float32
        )
        return logits

    return logits_of


TARGET, OTHER = few_tokens(1), few_tokens(2)


class DrawingDrafter(RecordingDrafter):
    """Draws chains from the other model; what it claims to have drawn from can be falsified.

    Args:
        num_candidates: Tokens that it can draw at each place; 0 is all.
    """

    def __init__(self, claim: Literal["true", "uniform"] = "true", num_candidates: int = 0) -> None:
        super().__init__("drawing")
        self._claim = claim
        self._num_candidates = num_candidates
        self._sampler = Sampler(VOCAB_SIZE, ())

    def tree_for(self, context: DraftContext) -> DraftTree:
        assert context.wants_laws
        tokens, state = list(context.tokens), context.state
        laws: list[DraftLaw] = []
        params = replace(context.params, top_k=self._num_candidates)
        for _ in range(context.max_draft_len):
            row = OTHER(tuple(tokens)).unsqueeze(0)
            request = RowRequest(params, state, context.seed, len(tokens))
            (token,) = self._sampler.sample(row, [request])
            probs = self._sampler.processed(row, [request])[0].double().softmax(-1).numpy()
            ids = np.flatnonzero(probs)
            claimed = probs[ids] if self._claim == "true" else np.full(len(ids), 1.0 / len(ids))
            laws.append(DraftLaw(ids, claimed))
            tokens.append(token)
            state = advance(context.params, state, token)
        drafted = tuple(tokens[len(context.tokens) :])
        chain = DraftTree.chain(drafted, [0.5**depth for depth in range(len(drafted))], self.name)
        return replace(chain, laws=tuple(laws))


def copying() -> Drafter:
    """Always the same continuation: certain, and often wrong."""
    return ScriptedDrafter(dict.fromkeys((*FAVOURITES, 30), (60, 20, 40)), "copying")


def draft_model() -> Drafter:
    rules = DraftModelRules(num_children=3, max_draft_len=2, least_score=0.0)
    return make_draft_model(OTHER, rules=rules, num_pages=2048).drafter


class Picky(FixedController):
    """Throws away drafts that begin with a certain token: it looks at what was drawn."""

    def prune(
        self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
    ) -> dict[str, DraftTree]:
        return {
            name: EMPTY_TREE if tree and tree.tokens[0] == FAVOURITES[0] else tree
            for name, tree in trees.items()
        }


def cost_controller(*, stops_at_loss: bool) -> CostController:
    """A wider pass costs, and costs most at three rows a request."""
    profile = {rows: 1.0 + 0.012 * rows + 0.5 * (rows > 96) for rows in range(1, 400)}
    return CostController(
        StepCost(profile), decay=0.9, probe_interval=4, min_gain=1.0, stops_at_loss=stops_at_loss
    )


def samples(
    drafters: Sequence[Drafter],
    params: SamplingParams,
    rule: Rule,
    *,
    controller: FixedController | CostController | None = None,
    num_samples: int = 600,
) -> list[list[int]]:
    setup = EngineSetup(
        num_pages=2048,
        max_num_requests=64,
        max_step_tokens=1024,
        max_queue_len=10_000,
        max_draft_len=2,
        max_draft_nodes=2,
    )
    harness = EngineHarness(
        drafters,
        logits_of=TARGET,
        setup=setup,
        controller=controller,
        verification=RejectionVerification(rule),
    )
    for seed in range(num_samples):
        of_seed = replace(params, max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed)
        harness.submit(f"s{seed}", PROMPT, of_seed)
    while harness.engine.has_work:
        for event in harness.engine.step():
            if isinstance(event, Tokens):
                result = harness.results[event.request_id]
                result.token_ids.setdefault(0, []).extend(event.token_ids)
    harness.engine.check_integrity()
    return [harness.results[f"s{seed}"].token_ids[0] for seed in range(num_samples)]


def distance(drawn: Sequence[Sequence[int]], params: SamplingParams) -> float:
    return excess(drawn, law_of(TARGET, PROMPT, params, NUM_TOKENS, VOCAB_SIZE))


DRAFTERS: Mapping[str, Callable[[], list[Drafter]]] = {
    "drawing": lambda: [DrawingDrafter()],
    "two candidates": lambda: [DrawingDrafter(num_candidates=2)],
    "copying": lambda: [copying()],
    "draft_model": lambda: [draft_model()],
    "both": lambda: [copying(), DrawingDrafter()],
}


@pytest.mark.parametrize(
    ("kind", "rule", "params"),
    [
        ("drawing", "chain", PLAIN),
        ("drawing", "block", PLAIN),
        ("drawing", "block", SHAPED),
        ("two candidates", "block", PLAIN),
        ("two candidates", "chain", SHAPED),
        ("copying", "chain", SHAPED),
        ("copying", "block", PLAIN),
        ("draft_model", "block", SHAPED),
        ("both", "block", PLAIN),
    ],
)
def test_the_first_tokens_have_the_targets_law(
    kind: str, rule: Rule, params: SamplingParams
) -> None:
    drawn = samples(DRAFTERS[kind](), params, rule)
    assert distance(drawn, params) < 4.0


def test_the_cost_controller_leaves_the_law_alone() -> None:
    controller = cost_controller(stops_at_loss=True)
    drafter = DrawingDrafter()
    drawn = samples([drafter], PLAIN, "block", controller=controller)
    assert distance(drawn, PLAIN) < 4.0


def test_block_verification_keeps_more_on_average() -> None:
    kept = {}
    for rule in RULES:
        drafter = DrawingDrafter()
        samples([drafter], PLAIN, rule)
        new = [item.num_new for item in drafter.observations]
        kept[rule] = sum(new) / len(new)
    assert 1.3 < kept["chain"] < kept["block"] < 2.5


@pytest.mark.parametrize("rule", RULES)
def test_a_false_law_is_seen(rule: Rule) -> None:
    assert distance(samples([DrawingDrafter("uniform")], PLAIN, rule), PLAIN) > 6.0


def test_a_controller_that_looks_at_draws_is_seen() -> None:
    drawn = samples([DrawingDrafter()], PLAIN, "chain", controller=Picky(), num_samples=1200)
    assert distance(drawn, PLAIN) > 6.0


@pytest.mark.parametrize("fault", ["no coins", "no residual"])
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no coins":
        monkeypatch.setattr(verification, "uniform_at", lambda seed, position: 0.5)
    else:
        monkeypatch.setattr(verification, "residual_probs", lambda target, draft, ratio: target)
    assert distance(samples([DrawingDrafter()], PLAIN, "block"), PLAIN) > 6.0
