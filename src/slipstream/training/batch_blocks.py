"""Blocks that start at random places of packed answers: what goes in and what should come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.training.packing import Packs


@dataclass(frozen=True, slots=True)
class Anchors:
    """Where blocks start.

    Attributes:
        places: [packs, anchors] int64 index of the anchor in its pack.
        is_real: [packs, anchors] bool; the others only fill up and weigh nothing.
    """

    places: Tensor
    is_real: Tensor


@dataclass(frozen=True, slots=True)
class AnchorRules:
    """How anchors are drawn.

    Attributes:
        count: Anchors of each pack.
        repeat_weight: How likely an anchor is whose next token only repeats the text, beside
            others.
    """

    count: int
    repeat_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class BlockLabels:
    """What the rows of blocks should draft; `drafts` counts from the token behind the anchor.

    Attributes:
        anchors: [packs, anchors] int64 the anchors' tokens.
        starts: [packs, anchors] int64 their positions.
        context: [packs, anchors, len] bool places in front of an anchor, in its own document.
        previous, labels: [packs, anchors, drafts] int64 the token in front of a draft, and the
            true one.
        top_ids, top_probs: [packs, anchors, drafts, k] what the target says there.
        is_valid: [packs, anchors, drafts] bool whether the answer goes on so far.
    """

    anchors: Tensor
    starts: Tensor
    context: Tensor
    previous: Tensor
    labels: Tensor
    top_ids: Tensor
    top_probs: Tensor
    is_valid: Tensor


def choose_anchors(packs: Packs, rules: AnchorRules, seeds: Sequence[int]) -> Anchors:
    """Draw anchors among an answer's own tokens with another behind them, without repetition.

    Args:
        seeds: Of each pack; they alone decide.

    Source of the weighted draw: Efraimidis and Spirakis 2006.
    """
    is_response = packs.is_response.numpy()
    documents = packs.documents.numpy()
    may_start = is_response.copy()
    may_start[:, -1] = False
    may_start[:, :-1] &= is_response[:, 1:] & (documents[:, 1:] == documents[:, :-1])
    weights = np.ones(may_start.shape)
    weights[:, :-1][packs.is_repeat.numpy()[:, 1:]] = rules.repeat_weight
    places = np.zeros((len(may_start), rules.count), np.int64)
    is_real = np.zeros_like(places, dtype=bool)
    for row, (candidates, seed) in enumerate(zip(may_start, seeds, strict=True)):
        rng = np.random.default_rng(seed)
        able = np.flatnonzero(candidates)
        keys = rng.exponential(size=len(able)) / weights[row, able]
        drawn = np.sort(able[np.argsort(keys)[: rules.count]])
        places[row, : len(drawn)] = drawn
        is_real[row, : len(drawn)] = True
    return Anchors(torch.from_numpy(places), torch.from_numpy(is_real))


def label_blocks(packs: Packs, anchors: Anchors, num_drafts: int) -> BlockLabels:
    """The blocks behind `anchors`."""
    pack_len = packs.tokens.shape[1]
    places = anchors.places
    drafts = torch.arange(num_drafts)
    in_front = (places.unsqueeze(-1) + drafts).clamp_max(pack_len - 1)
    at = places.unsqueeze(-1) + 1 + drafts
    is_inside = at < pack_len
    at = at.clamp_max(pack_len - 1)
    documents = _take(packs.documents, places)
    is_own = (_take(packs.documents, at) == documents.unsqueeze(-1)) & is_inside
    goes_on = is_own & _take(packs.is_response, at) & anchors.is_real.unsqueeze(-1)
    is_earlier = torch.arange(pack_len) < places.unsqueeze(-1)
    return BlockLabels(
        anchors=_take(packs.tokens, places),
        starts=_take(packs.positions, places),
        context=is_earlier & (packs.documents.unsqueeze(1) == documents.unsqueeze(-1)),
        previous=_take(packs.tokens, in_front),
        labels=_take(packs.tokens, at),
        top_ids=_take(packs.top_ids, in_front),
        top_probs=_take(packs.top_probs, in_front),
        is_valid=goes_on.int().cumprod(-1).bool(),
    )


def _take(values: Tensor, places: Tensor) -> Tensor:
    """values [packs, len, ...] at places [packs, ...]."""
    packs = torch.arange(len(values)).view(-1, *[1] * (places.dim() - 1))
    return values[packs, places]
