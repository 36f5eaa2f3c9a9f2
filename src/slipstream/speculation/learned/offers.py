"""Logits over a draft net's tokens as logits over the target's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.speculation.drafter import TargetRows


def target_logits(token_ids: Tensor, logits: Tensor, vocab_size: int) -> Tensor:
    """[rows, vocab_size] float32: -inf for tokens that the net does not offer.

    Args:
        token_ids: [rows, n] target ids, ascending from 0 where n is the whole vocabulary.
        logits: [rows, n].
    """
    if logits.shape[1] >= vocab_size:
        return logits
    every = torch.full((len(logits), vocab_size), -math.inf)
    return every.scatter(1, token_ids, logits)


def taps_of(item: TargetRows, layer_ids: tuple[int, ...]) -> Tensor:
    """[rows, taps * hidden] float32: the wanted layers of a request's rows side by side."""
    rows = torch.from_numpy(item.rows)
    return torch.cat([item.taps[layer][rows] for layer in layer_ids], -1).float()
