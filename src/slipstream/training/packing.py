"""Several answers side by side in sequences of one length, the same for a seed and an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.training.answers import Answer
from slipstream.training.target import Features

MIN_RESPONSE_LEN = 3  # less teaches a drafter nothing
_OPEN_PACKS = 32
_REPEAT_LEN = 6
_CONTEXT_SHARE = 4  # a quarter of a cut sequence is what stands in front of the answer


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an answer, with what is in front of it, that is trained on.

    Attributes:
        index: Of the answer in its dataset.
        start, stop: Tokens of prompt and answer together.
        prompt_len: Tokens of the prompt, those in front of `start` included.
    """

    index: int
    start: int
    stop: int
    prompt_len: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Packs:
    """Sequences to train on.

    Attributes:
        tokens, positions: [packs, len] int64; 0 where nothing is.
        documents: [packs, len] int64 which piece a place belongs to, from 0 in each pack; -1 where
            nothing is.
        is_response: [packs, len] bool places of an answer's own tokens.
        is_repeat: [packs, len] bool tokens that follow the tokens in front of them for the second
            time: copying drafts them.
        taps: [packs, len, taps * hidden] bfloat16.
        top_ids: [packs, len, k] int64 likeliest tokens *behind* each place; -1 where not known.
        top_probs: [packs, len, k] float32 their probabilities; 0 where not known.
    """

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    is_response: Tensor
    is_repeat: Tensor
    taps: Tensor
    top_ids: Tensor
    top_probs: Tensor


def cut_answers(answers: Sequence[Answer], indices: Iterable[int], pack_len: int) -> list[Piece]:
    """What of each chosen answer fits into a pack; answers that are too short are left out.

    The front of a long prompt goes first, then the end of a long answer.
    """
    pieces = []
    for index in indices:
        answer = answers[index]
        prompt_len, response_len = len(answer.prompt_ids), len(answer.response_ids)
        if response_len < MIN_RESPONSE_LEN:
            continue
        total = prompt_len + response_len
        room_in_front = max(pack_len - response_len, pack_len // _CONTEXT_SHARE)
        start = max(0, prompt_len - room_in_front)
        pieces.append(Piece(index, start, min(total, start + pack_len), prompt_len))
    return pieces


def arrange(pieces: Sequence[Piece], pack_len: int, seed: int) -> list[tuple[Piece, ...]]:
    """Put pieces into packs, in an order drawn from `seed`, each where it leaves least room."""
    order = np.random.default_rng(seed).permutation(len(pieces))
    opened: list[list[Piece]] = []
    rooms: list[int] = []
    packs: list[tuple[Piece, ...]] = []
    for index in order:
        piece = pieces[index]
        fitting = [number for number, room in enumerate(rooms) if room >= len(piece)]
        if fitting:
            number = min(fitting, key=rooms.__getitem__)
            opened[number].append(piece)
            rooms[number] -= len(piece)
            continue
        if len(opened) == _OPEN_PACKS:
            fullest = min(range(_OPEN_PACKS), key=rooms.__getitem__)
            packs.append(tuple(opened.pop(fullest)))
            rooms.pop(fullest)
        opened.append([piece])
        rooms.append(pack_len - len(piece))
    return packs + [tuple(pack) for pack in opened]


def find_repeats(tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[tokens] whether each follows the few in front of it as it did when they last occurred."""
    is_repeat = np.zeros(len(tokens), dtype=np.bool_)
    followed_by: dict[tuple[int, ...], int] = {}
    for place in range(_REPEAT_LEN, len(tokens)):
        in_front = tuple(tokens[place - _REPEAT_LEN : place])
        is_repeat[place] = followed_by.get(in_front) == tokens[place]
        followed_by[in_front] = tokens[place]
    return is_repeat


def build_packs(
    packs: Sequence[Sequence[Piece]],
    answers: Sequence[Answer],
    features: Sequence[Sequence[Features]],
    pack_len: int,
) -> Packs:
    """Lay pieces and their features out.

    Args:
        features: Of each pack's pieces in order.
    """
    first = features[0][0]
    num_packs, num_top = len(packs), first.top_ids.shape[-1]
    ids = torch.zeros(num_packs, pack_len, dtype=torch.int64)
    built = Packs(
        tokens=ids,
        positions=ids.clone(),
        documents=torch.full_like(ids, -1),
        is_response=torch.zeros(num_packs, pack_len, dtype=torch.bool),
        is_repeat=torch.zeros(num_packs, pack_len, dtype=torch.bool),
        taps=torch.zeros(num_packs, pack_len, first.taps.shape[-1], dtype=torch.bfloat16),
        top_ids=torch.full((num_packs, pack_len, num_top), -1),
        top_probs=torch.zeros(num_packs, pack_len, num_top),
    )
    for row, (pieces, of_pieces) in enumerate(zip(packs, features, strict=True)):
        place = 0
        for number, (piece, of_piece) in enumerate(zip(pieces, of_pieces, strict=True)):
            _lay(built, (row, place, number), piece, answers[piece.index], of_piece)
            place += len(piece)
    return built


def _lay(
    built: Packs, where: tuple[int, int, int], piece: Piece, answer: Answer, features: Features
) -> None:
    row, place, number = where
    end = place + len(piece)
    tokens = (*answer.prompt_ids, *answer.response_ids)[piece.start : piece.stop]
    built.tokens[row, place:end] = torch.tensor(tokens)
    built.positions[row, place:end] = torch.arange(piece.start, piece.stop)
    built.documents[row, place:end] = number
    built.taps[row, place:end] = features.taps[piece.start : piece.stop]
    first_response = place + piece.prompt_len - piece.start
    built.is_response[row, first_response:end] = True
    built.is_repeat[row, place:end] = torch.from_numpy(find_repeats(tokens))
    known = end - first_response  # tokens of the answer; the row in front of each knows them
    known_at = slice(first_response - 1, end - 1)
    built.top_ids[row, known_at] = features.top_ids[:known].long()
    built.top_probs[row, known_at] = features.top_logprobs[:known].float().exp()
