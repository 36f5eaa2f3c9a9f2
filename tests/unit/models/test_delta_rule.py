"""The gated delta rule against its formula, row by row in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.kv.states import StateSpan
from slipstream.models.layers.delta_rule import DeltaRows, run_delta_rule

HEADS, KEY_DIM, VALUE_DIM = 3, 8, 5


def draw_rows(count: int) -> DeltaRows:
    generator = torch.Generator().manual_seed(count)

    def draw(*shape: int) -> Tensor:
        return torch.randn(count, HEADS, *shape, generator=generator)

    keys = draw(KEY_DIM)
    return DeltaRows(
        queries=draw(KEY_DIM),
        keys=keys / keys.norm(dim=-1, keepdim=True),
        values=draw(VALUE_DIM),
        decays=torch.sigmoid(draw()),
        rates=torch.sigmoid(draw()),
    )


def by_formula(rows: DeltaRows, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of all rows, and the state behind the last."""
    state, outputs = state.double(), []
    for row in range(len(rows.values)):
        key, value = rows.keys[row].double(), rows.values[row].double()
        state = state * rows.decays[row, :, None, None]
        error = value - torch.einsum("hvk,hk->hv", state, key)
        state = state + torch.einsum("hv,hk,h->hvk", error, key, rows.rates[row].double())
        outputs.append(torch.einsum("hvk,hk->hv", state, rows.queries[row].double()))
    return torch.stack(outputs), state


def test_outputs_and_state_are_those_of_the_formula() -> None:
    rows = draw_rows(12)
    matrices = torch.zeros(3, HEADS, VALUE_DIM, KEY_DIM)
    matrices[1] = torch.randn(HEADS, VALUE_DIM, KEY_DIM)
    expected, state = by_formula(rows, matrices[1])

    outputs = run_delta_rule(rows, [0], [StateSpan(0, 12, 0, source=1, target=2)], matrices)

    torch.testing.assert_close(outputs.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(matrices[2].double(), state, atol=1e-5, rtol=1e-5)


def test_drafts_change_outputs_but_no_state() -> None:
    rows = draw_rows(6)
    with_drafts, without = (torch.zeros(2, HEADS, VALUE_DIM, KEY_DIM) for _ in range(2))

    run_delta_rule(rows, [0], [StateSpan(0, 2, 4, target=1)], with_drafts)
    known = DeltaRows(
        rows.queries[:2], rows.keys[:2], rows.values[:2], rows.decays[:2], rows.rates[:2]
    )
    run_delta_rule(known, [0], [StateSpan(0, 2, 0, target=1)], without)

    assert torch.equal(with_drafts, without)
    assert not with_drafts[0].any()


def test_spans_of_any_lengths_give_each_its_own_bits() -> None:
    rows = draw_rows(20)
    spans = [StateSpan(0, 3, 0, target=1), StateSpan(3, 11, 2, target=2), StateSpan(16, 1, 3)]
    matrices = torch.zeros(3, HEADS, VALUE_DIM, KEY_DIM)

    together = run_delta_rule(rows, [0, 3, 16], spans, matrices)

    for first, span in zip((0, 3, 16), spans, strict=True):
        alone = torch.zeros(3, HEADS, VALUE_DIM, KEY_DIM)
        own = slice(first, first + span.num_rows)
        part = DeltaRows(
            rows.queries[own], rows.keys[own], rows.values[own], rows.decays[own], rows.rates[own]
        )
        assert torch.equal(run_delta_rule(part, [0], [span], alone), together[own])
        assert torch.equal(alone[span.target], matrices[span.target])
