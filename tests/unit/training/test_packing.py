from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.training.answers import Answer
from slipstream.training.batch_blocks import AnchorRules, choose_anchors, label_blocks
from slipstream.training.packing import (
    Packs,
    Piece,
    arrange,
    build_packs,
    cut_answers,
    find_repeats,
)
from slipstream.training.session import open_source
from tests.support.training import PACK_LEN, counting_answers, tiny_target, write_dataset


def answer_of(prompt_len: int, response_len: int) -> Answer:
    return Answer(
        prompt_id="a",
        temperature=0.0,
        prompt_ids=(5,) * prompt_len,
        response_ids=(6,) * response_len,
        finish="stop",
    )


@pytest.fixture
def packs(tmp_path: Path) -> Packs:
    target = tiny_target(tmp_path)
    answers = counting_answers(9)
    source = open_source(target, write_dataset(tmp_path / "data", target, answers), (0, 1), None)
    arranged = arrange(cut_answers(answers, range(9), PACK_LEN), PACK_LEN, 5)
    features = [source.features([piece.index for piece in pack]) for pack in arranged]
    return build_packs(arranged, answers, features, PACK_LEN)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 5))
def test_every_piece_is_in_one_pack_and_none_is_over_full(lengths: list[int], seed: int) -> None:
    pieces = [Piece(index, 0, length, 1) for index, length in enumerate(lengths)]
    packs = arrange(pieces, 40, seed)
    assert sorted(piece.index for pack in packs for piece in pack) == list(range(len(lengths)))
    assert all(sum(len(piece) for piece in pack) <= 40 for pack in packs)


def test_packs_depend_on_the_seed_alone() -> None:
    pieces = [Piece(index, 0, 7 + index % 5, 1) for index in range(50)]
    assert arrange(pieces, 40, 1) == arrange(pieces, 40, 1)
    assert arrange(pieces, 40, 1) != arrange(pieces, 40, 2)


@pytest.mark.parametrize(
    ("prompt_len", "response_len", "start", "stop"),
    [(10, 20, 0, 30), (100, 20, 72, 120), (100, 90, 88, 136), (4, 90, 0, 48)],
)
def test_the_front_of_a_prompt_goes_first_then_the_end_of_an_answer(
    prompt_len: int, response_len: int, start: int, stop: int
) -> None:
    (piece,) = cut_answers([answer_of(prompt_len, response_len)], [0], 48)
    assert (piece.start, piece.stop) == (start, stop)


def test_answers_of_two_tokens_are_left_out() -> None:
    assert cut_answers([answer_of(5, 2)], [0], 48) == []


def test_a_place_knows_what_the_target_says_behind_it(packs: Packs, tmp_path: Path) -> None:
    knows = packs.top_ids[..., 0] >= 0
    is_in_front = packs.is_response[:, 1:] & (packs.documents[:, 1:] == packs.documents[:, :-1])
    assert (knows[:, :-1] == is_in_front).all()
    sums = packs.top_probs.sum(-1)[knows]
    assert ((sums > 0.3) & (sums < 1.001)).all()


def test_anchors_and_their_first_label_are_an_answers_own(packs: Packs) -> None:
    anchors = choose_anchors(packs, AnchorRules(10), range(len(packs.tokens)))
    labels = label_blocks(packs, anchors, 3)
    assert bool(labels.is_valid[..., 0].eq(anchors.is_real).all())
    counts_up = labels.labels == labels.previous + 1
    is_end = labels.labels == 2
    assert bool((counts_up | is_end)[labels.is_valid].all())
    assert bool((labels.previous[..., 0] == labels.anchors).all())


def test_a_block_sees_what_is_in_front_of_its_anchor_in_its_own_document(packs: Packs) -> None:
    anchors = choose_anchors(packs, AnchorRules(4), range(len(packs.tokens)))
    labels = label_blocks(packs, anchors, 3)
    for pack in range(len(packs.tokens)):
        for number, place in enumerate(anchors.places[pack].tolist()):
            seen = labels.context[pack, number].nonzero().flatten().tolist()
            start = int(packs.positions[pack, place])  # pieces of this size are whole
            assert seen == list(range(place - start, place))


def test_tokens_that_repeat_the_text_are_found() -> None:
    once = [3, 1, 4, 1, 5, 9, 2, 6]
    assert not find_repeats(once).any()
    again = find_repeats([*once, 7, *once])
    assert again.nonzero()[0].tolist() == [15, 16]  # the first six tokens of a copy could be new
    assert not find_repeats([*once, 7, *once[:6], 8]).any()


def test_few_blocks_start_where_the_text_repeats_itself(packs: Packs) -> None:
    is_repeat = torch.zeros_like(packs.is_repeat)
    is_repeat[:, ::2] = True
    half = replace(packs, is_repeat=is_repeat)
    found = {}
    for weight in (1.0, 1e-6):
        anchors = choose_anchors(half, AnchorRules(6, weight), range(len(packs.tokens)))
        places = anchors.places[anchors.is_real]
        found[weight] = float((places % 2 == 1).float().mean())  # the token behind it is even
    assert found[1e-6] < 0.1 < 0.3 < found[1.0]


def test_anchors_of_a_pack_do_not_depend_on_its_neighbours(packs: Packs) -> None:
    alone = Packs(*(getattr(packs, name)[1:2] for name in Packs.__dataclass_fields__))
    together = choose_anchors(packs, AnchorRules(6), range(len(packs.tokens)))
    assert (
        together.places[1].tolist() == choose_anchors(alone, AnchorRules(6), [1]).places[0].tolist()
    )
