"""From a net's confidence, or its distribution, to how much of a draft is verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from slipstream.models.drafts.hparams import DSparkHparams
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.confidence import expected_overlap
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.drafters.block_net import BlockNetDrafter
from slipstream.speculation.prefix_schedule import schedule_prefixes
from slipstream.speculation.tree import DraftTree
from tests.support.draft_nets import FedDrafter, make_net_drafter
from tests.support.drafters import draft_context

TEMPERATURES = (0.5, 3.0, 2.0, 8.0)
GREEDY = SamplingParams(temperature=0.0)
TEXTS = [[7, 8, 9, 10 + row, 30 + 3 * row] for row in range(5)]


def dspark(temperatures: tuple[float, ...] = ()) -> FedDrafter:
    """A drafter with a confidence head, calibrated."""
    drafter = make_net_drafter("dspark")
    block_drafter = drafter._drafter
    assert isinstance(block_drafter, BlockNetDrafter)
    hparams = block_drafter._net.hparams
    assert isinstance(hparams, DSparkHparams)
    block_drafter._net.hparams = replace(hparams, confidence_temperatures=temperatures)
    return drafter


def propose(drafter: FedDrafter) -> list[DraftTree]:
    contexts = [
        draft_context(text, request_id=str(index), params=GREEDY)
        for index, text in enumerate(TEXTS)
    ]
    return drafter.propose(contexts)


def confidences(tree: DraftTree) -> list[float]:
    """By depth, the probability of acceptance behind an accepted prefix."""
    before = [1.0, *tree.scores[:-1]]
    return [score / former for score, former in zip(tree.scores, before, strict=True)]


def logit(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def test_scores_are_calibrated_confidences_multiplied_up() -> None:
    for raw, calibrated in zip(propose(dspark()), propose(dspark(TEMPERATURES)), strict=True):
        assert raw.tokens == calibrated.tokens
        assert len(raw) == len(TEMPERATURES)
        pairs = zip(confidences(raw), confidences(calibrated), TEMPERATURES, strict=True)
        for before, after, temperature in pairs:
            assert logit(after) == pytest.approx(logit(before) / temperature, abs=1e-3)


def lengths(trees: Sequence[DraftTree], seconds: dict[int, float]) -> tuple[int, ...]:
    """Drafts that the controller lets through."""
    controller = CostController(
        StepCost(seconds), decay=0.9, probe_interval=1000, min_gain=1.0, stops_at_loss=True
    )
    kept = controller.prune(
        {str(index): tree for index, tree in enumerate(trees)}, len(trees), len(trees)
    )
    return tuple(len(kept[str(index)]) for index in range(len(trees)))


def test_the_controller_spends_rows_as_the_prefix_scheduler_does() -> None:
    seconds = {rows: 1.0 + 0.04 * rows + 0.002 * rows * rows for rows in range(1, 64)}
    per_s = {rows: 1.0 / value for rows, value in seconds.items()}
    chosen = []
    for temperatures in ((), TEMPERATURES):
        trees = propose(dspark(temperatures))
        schedule = schedule_prefixes([confidences(tree) for tree in trees], per_s)
        assert lengths(trees, seconds) == schedule.lengths
        chosen.append(schedule.lengths)
    assert 0 < sum(chosen[0]) < 4 * len(TEXTS)
    assert chosen[0] != chosen[1]


def test_looking_no_further_than_the_first_loss_may_miss_a_gain() -> None:
    """A cliff in the cost hides what lies behind it from whoever must not know the draws there."""
    seconds = {1: 1.0, 2: 1.9, 3: 1.9, 4: 1.9, 5: 1.9}
    tree = DraftTree.chain([1, 2, 3, 4], [0.8, 0.8, 0.8, 0.8], "test")
    assert lengths([tree], seconds) == (0,)
    looking = CostController(StepCost(seconds), decay=0.9, probe_interval=1000, min_gain=1.0)
    assert len(looking.prune({"0": tree}, 1, 1)["0"]) == 4


def test_expected_overlap_is_that_of_disturbed_logits() -> None:
    generator = np.random.default_rng(0)
    for spread in (0.5, 2.0, 4.0):
        logits = generator.normal(0.0, spread, 200)
        weights = np.exp(logits - logits.max())
        draft = weights / weights.sum()
        overlaps = []
        for _ in range(200):
            target = draft * np.exp(generator.normal(0.0, 0.64, 200))
            overlaps.append(np.minimum(target / target.sum(), draft).sum())
        assert expected_overlap(draft, 1.0) == pytest.approx(np.mean(overlaps), abs=0.05)


def test_a_certain_draft_expects_to_be_accepted() -> None:
    assert expected_overlap(np.array([1.0]), 1.0) == 1.0
    assert 0.0 < expected_overlap(np.full(100, 0.01), 0.1) < 0.2
