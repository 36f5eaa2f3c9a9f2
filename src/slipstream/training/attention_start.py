"""Attention to start with: rows of a block look at the context in front of them, and pass it on.

A block drafter's rows know the target's states through attention alone, and random attention takes
the mean of hundreds of them, in which nothing is left to learn from. So one head of each group
starts with weights that depend on distance only and fall from the nearest context on, and hands
on most of what the features there say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.hparams import Hparams
from slipstream.models.layers.rotary import frequencies

_SLOWEST, _FASTEST = 0.05, 0.5  # radians a place: falling over all places of a block
_LENGTH = 4.0  # of the part that is alike in all keys, beside the random rest of about as much
_GAIN = 2.0  # on the numbers that hold that part
_NOISE = 0.3  # of the usual random start, around what is set
_PASSED_SHARE = 0.3  # of a feature's size, that it has in the residual stream


@dataclass(frozen=True, slots=True)
class Seen:
    """What the attention of a net to start will see.

    Attributes:
        features: [places, hidden] context features, normalised.
        anchors: [places, hidden] embeddings of an answer's tokens, normalised.
        mask: [hidden] embedding of the mask token, normalised.
    """

    features: Tensor
    anchors: Tensor
    mask: Tensor


def look_at_nearest(parameters: Mapping[str, Tensor], body: Hparams, seen: Seen) -> None:
    """Change the attention of all layers in place; its products must have no bias."""
    context = seen.features.mean(0)
    towards_context = context / context.square().sum()
    towards_rows = _alike_in_rows(seen)
    directions = _principal(seen.features - context)
    for index, layer in enumerate(body.layers):
        attention = f"layers.{index}.self_attn"
        queries, keys, values, output = (
            parameters[f"{attention}.{name}_proj.weight"] for name in ("q", "k", "v", "o")
        )
        angles = torch.from_numpy(frequencies(layer.rotary, body.head_dim))
        is_used = (angles > _SLOWEST) & (angles < _FASTEST)
        constant = _LENGTH * is_used / math.sqrt(max(int(is_used.sum()), 1))
        constant = torch.cat((constant, torch.zeros(body.head_dim - len(constant))))
        is_used = torch.cat((is_used, is_used))
        for kv_head in range(body.kv_heads):
            own = slice(kv_head * body.head_dim, (kv_head + 1) * body.head_dim)
            keys[own] *= ~is_used.unsqueeze(1)
            keys[own] += torch.outer(constant, towards_context)
            first = kv_head * (body.num_heads // body.kv_heads) * body.head_dim
            head = slice(first, first + body.head_dim)
            queries[head] *= _NOISE
            queries[head] += torch.outer(constant, towards_rows)
            passed = directions[index * body.kv_size :][own]
            values[own] *= _NOISE
            values[own][: len(passed)] += passed
            output[:, head] *= _NOISE
            output[:, head][:, : len(passed)] += _PASSED_SHARE * passed.T
        for name in ("q_norm", "k_norm"):
            parameters[f"{attention}.{name}.weight"][is_used] *= _GAIN


def _alike_in_rows(seen: Seen) -> Tensor:
    """[hidden] d so that d . x is 1 for the mask, and 1 on average for anchors."""
    anchor = seen.anchors.mean(0)
    anchor_only = anchor / anchor.square().sum()
    mask_only = seen.mask - anchor_only * (anchor @ seen.mask)
    return anchor_only + mask_only * (1.0 - anchor_only @ seen.mask) / (mask_only @ seen.mask)


def _principal(centred: Tensor) -> Tensor:
    """[hidden, hidden] directions of features, those that vary most first."""
    vectors: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return vectors.flip(1).T
