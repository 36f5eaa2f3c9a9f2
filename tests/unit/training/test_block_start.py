"""What a block drafter knows before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context, LayerKv, attend
from slipstream.training.answers import Answer
from slipstream.training.block_start import Lessons
from slipstream.training.markov_start import markov_start
from slipstream.training.objective import DraftIds
from slipstream.training.session import TrainingTarget, start_net
from slipstream.training.settings import Family
from tests.support.training import VOCAB_SIZE, fixed_parts, tiny_settings, tiny_target

CONTEXT_LEN, NUM_ROWS, HIDDEN = 24, 4, 32
BLOCK_FAMILIES: tuple[Family, ...] = ("dspark", "dflash", "dflash2")


def answers_of(*texts: list[int]) -> list[Answer]:
    return [
        Answer(prompt_id=str(i), temperature=0.0, prompt_ids=(1,), response_ids=text, finish="stop")
        for i, text in enumerate(texts)
    ]


def bias(factors: tuple[Tensor, Tensor], token: int) -> Tensor:
    return factors[0][token] @ factors[1].T


def test_a_markov_head_starts_with_what_follows_each_token() -> None:
    answers = answers_of([5, 6, 7] * 40, [5, 8, 7] * 10, [9, 9, 9, 9])
    factors = markov_start(answers, DraftIds(None, 12), 6)
    assert [int(bias(factors, token).argmax()) for token in (5, 6, 8)] == [6, 7, 7]
    assert bias(factors, 5)[8] > bias(factors, 5)[9]


def test_a_token_that_never_occurred_gets_the_commonest_ones() -> None:
    answers = answers_of([5, 6, 7, 6] * 20)
    factors = markov_start(answers, DraftIds(None, 12), 4)
    assert int(bias(factors, 11).argmax()) == 6


def test_a_markov_head_counts_in_ids_of_the_draft() -> None:
    answers = answers_of([5, 6, 7] * 10)
    first, second = markov_start(answers, DraftIds(torch.tensor([5, 7]), 12), 8)
    assert (first.shape, second.shape) == ((12, 8), (2, 8))
    assert int(bias((first, second), 6).argmax()) == 1


def test_both_factors_are_equally_large() -> None:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(0, 40, (2000,), generator=generator).tolist()
    first, second = markov_start(answers_of(text), DraftIds(None, 40), 8)
    assert 0.5 < float(first.square().mean() / second.square().mean()) < 2.0


@pytest.fixture
def target(tmp_path: Path) -> TrainingTarget:
    return tiny_target(tmp_path)


def started(
    family: Family, target: TrainingTarget, lessons: Lessons | None
) -> tuple[AnyDraftNet, Tensor]:
    settings = tiny_settings(family)
    fixed = fixed_parts(settings)
    return start_net(settings, target, fixed, lessons).copy_in(torch.float32), fixed.tap_scales


def some_lessons(num_channels: int) -> Lessons:
    generator = torch.Generator().manual_seed(2)
    always = torch.randn(num_channels, generator=generator) * 3.0
    taps = always + torch.randn(200, num_channels, generator=generator)
    tokens = torch.randint(1, VOCAB_SIZE, (100,), generator=generator).tolist()
    return Lessons(answers_of(tokens), taps)


def weight_of_context(net: BlockNet[object], taps: Tensor) -> Tensor:  # type: ignore[type-var]
    """[rows, context] weights of each row's first head in the first layer."""
    positions = torch.arange(CONTEXT_LEN).unsqueeze(0)
    layers = net.context_kv(net.context_features(taps[:CONTEXT_LEN].unsqueeze(0)), positions)
    marked = [LayerKv(layer.keys, torch.zeros_like(layer.values)) for layer in layers]
    weights: list[Tensor] = []

    def spying(
        queries: Tensor, context: LayerKv, visible: Tensor, own: LayerKv, seen: Tensor, scale: float
    ) -> Tensor:
        mixed = attend(queries, context, visible, own, seen, scale)
        scores = torch.einsum("rd,sd->rs", queries[0, 0, :, 0], context.keys[0, :, 0]) * scale
        weights.append(scores.softmax(-1))
        return mixed

    net.attend = spying
    tokens = net.block_tokens(torch.tensor([[5]]), NUM_ROWS)
    at = (CONTEXT_LEN + torch.arange(NUM_ROWS)).view(1, 1, -1)
    visible = torch.ones(1, 1, CONTEXT_LEN, dtype=torch.bool)
    net.block_hidden(tokens, at, Context(marked, positions, visible))
    return weights[0]


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_the_rows_of_a_block_look_at_the_nearest_context(
    family: Family, target: TrainingTarget
) -> None:
    lessons = some_lessons(HIDDEN * 2)
    net, _ = started(family, target, lessons)
    assert isinstance(net, BlockNet)
    weights = weight_of_context(net, lessons.taps)
    assert (weights.argmax(-1) == CONTEXT_LEN - 1).all()
    assert (weights[0, -4:].sum() > 0.8).all()


def test_without_lessons_a_net_starts_as_before(target: TrainingTarget) -> None:
    first, _ = started("dspark", target, None)
    assert not first.parameters["markov_head.markov_w2.weight"].any()
