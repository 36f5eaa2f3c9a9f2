"""The gated delta rule as a recurrence over rows, in float32 and in one fixed order.

A head's state S [value_dim, key_dim] takes in a row (q, k, v, decay, rate):

    S <- decay * S;   S <- S + rate * (v - S k) k^T;   output = S q

The same steps serve prompts, verification and replay. Chunked forms that are faster for prompts
add in another order, so they cannot promise the same bits.

Source: Yang et al. 2024 (arXiv:2412.06464).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kv.states import StateSpan


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """What rows feed to a layer's state, all float32.

    Attributes:
        queries, keys: [rows, heads, key_dim], normalised.
        values: [rows, heads, value_dim].
        decays, rates: [rows, heads].
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    rates: Tensor


class DeltaRule(Protocol):
    """One way of computing the recurrence: a row's bits depend on its own text alone."""

    name: str

    def __call__(
        self, rows: DeltaRows, firsts: Sequence[int], spans: Sequence[StateSpan], matrices: Tensor
    ) -> Tensor:
        """As `run_delta_rule`."""


class TorchDeltaRule:
    """See `DeltaRule`: `run_delta_rule`."""

    name = "torch"

    def __call__(
        self, rows: DeltaRows, firsts: Sequence[int], spans: Sequence[StateSpan], matrices: Tensor
    ) -> Tensor:
        """See `DeltaRule`."""
        return run_delta_rule(rows, firsts, spans, matrices)


def run_delta_rule(
    rows: DeltaRows, firsts: Sequence[int], spans: Sequence[StateSpan], matrices: Tensor
) -> Tensor:
    """Take in the rows of all spans, side by side; states are read and written in `matrices`.

    Args:
        rows: Kept, known and draft rows of each span, in this order.
        firsts: Where each span's rows begin among them.
        matrices: [states, heads, value_dim, key_dim].
    Returns: [rows, heads, value_dim] float32.
    """
    order = sorted(range(len(spans)), key=lambda index: -_length(spans[index]))
    ordered = [spans[index] for index in order]
    lengths = [_length(span) for span in ordered]
    begins = torch.tensor([firsts[index] for index in order])
    outputs = torch.empty_like(rows.values)
    state = matrices.index_select(0, torch.tensor([span.source for span in ordered]))
    _store(state, ordered, 0, matrices)
    for step in range(lengths[0] if lengths else 0):
        while lengths[len(state) - 1] <= step:  # the shortest spans end first
            state = state[:-1]
        at = begins[: len(state)] + step
        outputs.index_copy_(0, at, _take_in(state, rows, at))
        _store(state, ordered, step + 1, matrices)
    return outputs


def _take_in(state: Tensor, rows: DeltaRows, at: Tensor) -> Tensor:
    """One row of each span; each operation is rounded by itself, sums go over the last axis."""
    queries, keys, values = (x.index_select(0, at) for x in (rows.queries, rows.keys, rows.values))
    decays, rates = rows.decays.index_select(0, at), rows.rates.index_select(0, at)
    state.mul_(decays[:, :, None, None])
    known = (state * keys.unsqueeze(-2)).sum(-1)
    change = values.sub_(known).mul_(rates.unsqueeze(-1))
    state.add_(change.unsqueeze(-1) * keys.unsqueeze(-2))
    return (state * queries.unsqueeze(-2)).sum(-1)


def _store(state: Tensor, spans: Sequence[StateSpan], num_rows: int, matrices: Tensor) -> None:
    """Write what holds behind `num_rows` rows to where it is wanted."""
    for index in range(len(state)):
        span = spans[index]
        if span.target and num_rows == span.num_kept + span.num_known:
            matrices[span.target] = state[index]
        for count, snapshot in span.snapshots:
            if count == num_rows:
                matrices[snapshot] = state[index]


def _length(span: StateSpan) -> int:
    return span.num_kept + span.num_rows
