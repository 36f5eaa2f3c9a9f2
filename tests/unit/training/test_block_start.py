"""What a block drafter knows before its first step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.training.answers import Answer
from slipstream.training.block_objective import AnyBlockNet
from slipstream.training.markov_start import markov_start
from slipstream.training.objective import DraftIds
from slipstream.training.session import TrainingTarget, start_net
from slipstream.training.start import Lessons
from tests.support.training import VOCAB_SIZE, fixed_parts, tiny_settings

CONTEXT_LEN, NUM_ROWS, HIDDEN = 24, 4, 32
BLOCK_FAMILIES: tuple[DraftFamily, ...] = ("dspark", "dflash", "dflash2")


def answers_of(*texts: list[int]) -> list[Answer]:
    return [
        Answer(
            prompt_id=str(number),
            temperature=0.0,
            prompt_ids=(1,),
            response_ids=tuple(text),
            finish="stop",
        )
        for number, text in enumerate(texts)
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


def started(family: DraftFamily, target: TrainingTarget, lessons: Lessons | None) -> AnyDraftNet:
    settings = tiny_settings(family)
    return start_net(settings, target, fixed_parts(settings), lessons).copy_in(torch.float32)


def some_lessons(num_channels: int) -> Lessons:
    generator = torch.Generator().manual_seed(2)
    always = torch.randn(num_channels, generator=generator) * 3.0
    taps = always + torch.randn(200, num_channels, generator=generator)
    tokens = torch.randint(1, VOCAB_SIZE, (100,), generator=generator).tolist()
    return Lessons(answers_of(tokens), taps)


def weights_of_context(net: AnyBlockNet, taps: Tensor) -> Tensor:
    """[rows, context] weights of each row's first head in the first layer."""
    positions = torch.arange(CONTEXT_LEN).unsqueeze(0)
    keys = net.context_kv(net.context_features(taps[:CONTEXT_LEN].unsqueeze(0)), positions)[0].keys
    tokens = net.block_tokens(torch.tensor([[5]]), NUM_ROWS)
    at = (CONTEXT_LEN + torch.arange(NUM_ROWS)).view(1, 1, -1)
    queries = net.queries(0, net.norm("layers.0.input_layernorm", net.embed(tokens)), at)
    scores = torch.einsum("rd,sd->rs", queries[0, 0, :, 0], keys[0, :, 0])
    return torch.softmax(scores * net.hparams.body.attention_scale, -1)


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_the_rows_of_a_block_look_at_the_nearest_context(
    family: DraftFamily, target: TrainingTarget
) -> None:
    lessons = some_lessons(HIDDEN * 2)
    net = started(family, target, lessons)
    assert isinstance(net, BlockNet)
    weights = weights_of_context(net, lessons.taps)
    assert (weights.argmax(-1) == CONTEXT_LEN - 1).all()
    assert (weights[0, -4:].sum() > 0.8).all()


def test_without_lessons_a_markov_head_starts_with_no_bias(target: TrainingTarget) -> None:
    net = started("dspark", target, None)
    assert not net.parameters["markov_head.markov_w2.weight"].any()


def test_what_was_counted_decides_before_the_first_step(target: TrainingTarget) -> None:
    lessons = Lessons(answers_of([5, 6, 7] * 60), some_lessons(HIDDEN * 2).taps)
    net = started("dspark", target, lessons)
    assert isinstance(net, BlockNet)
    hidden = net.norm("norm", torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(4)))
    choices = net.choices(hidden, net.logits(hidden), torch.full((64,), 5))
    assert (choices.token_ids[0, choices.logits.argmax(-1)] == 6).all()
