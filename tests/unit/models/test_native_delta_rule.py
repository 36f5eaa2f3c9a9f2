"""The native delta rule against its twin in torch, and against itself cut in other ways."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from slipstream.kernels.library import KernelLibrary
from slipstream.kv.states import StateSpan
from slipstream.models.layers.delta_rule import DeltaRows, DeltaRule, TorchDeltaRule
from slipstream.models.layers.native_delta_rule import NativeDeltaRule, fits
from tests.support.native import native_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_ROWS, HEADS, VALUE_DIM, NUM_STATES = 50, 3, 10, 8


class Text:
    """Rows to take in, and states to start from."""

    def __init__(self, key_dim: int) -> None:
        generator = torch.Generator().manual_seed(key_dim)

        def draw(*shape: int) -> Tensor:
            return torch.randn(NUM_ROWS, HEADS, *shape, generator=generator)

        keys = draw(key_dim)
        self.rows = DeltaRows(
            queries=draw(key_dim),
            keys=keys / keys.norm(dim=-1, keepdim=True),
            values=draw(VALUE_DIM),
            decays=torch.sigmoid(draw()),
            rates=torch.sigmoid(draw()),
        )
        self.start = torch.randn(NUM_STATES, HEADS, VALUE_DIM, key_dim, generator=generator)
        self.start[0] = 0.0

    def run(
        self, rule: DeltaRule, spans: list[StateSpan], firsts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Outputs and states behind one pass over all rows."""
        matrices = self.start.clone()
        return rule(self.rows, firsts, spans, matrices), matrices

    def picked(self, indices: Sequence[int]) -> DeltaRows:
        """Some rows."""
        rows, at = self.rows, list(indices)
        return DeltaRows(
            rows.queries[at], rows.keys[at], rows.values[at], rows.decays[at], rows.rates[at]
        )


SPANS = [
    StateSpan(0, 21, 3, source=4, target=1, num_kept=1, snapshots=((3, 5), (19, 6), (22, 7))),
    StateSpan(24, 22, 0, target=2),
    StateSpan(46, 0, 3, source=2),
]
FIRSTS = [0, 25, 47]


def native(isa: str | None = None) -> NativeDeltaRule:
    return NativeDeltaRule(native_kernels(isa))


@pytest.mark.parametrize("key_dim", [16, 32, 64, 128, 256])
def test_outputs_states_and_snapshots_are_near_those_of_the_twin(key_dim: int) -> None:
    assert fits(key_dim)
    text = Text(key_dim)
    spans = [SPANS[0], SPANS[1], StateSpan(46, 0, 3, source=3)]

    expected = text.run(TorchDeltaRule(), spans, FIRSTS)

    torch.testing.assert_close(text.run(native(), spans, FIRSTS), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("key_dim", [16, 128, 256])
def test_every_instruction_set_gives_the_same_bits(key_dim: int) -> None:
    text, best = Text(key_dim), KernelLibrary().isa_name
    spans = SPANS[:2]

    outputs, states = text.run(native("portable"), spans, FIRSTS[:2])

    for isa in {"avx512", best} - {"portable"}:
        other_outputs, other_states = text.run(native(isa), spans, FIRSTS[:2])
        assert torch.equal(other_outputs[:47], outputs[:47])
        assert torch.equal(other_states, states)


@pytest.mark.parametrize("cuts", [[1] * 40, [7, 1, 16, 16], [17, 23], [39, 1]])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_any_cuts_drafts_and_neighbours_give_the_same_bits(
    cuts: list[int], num_threads: int
) -> None:
    text, rule = Text(128), native()
    whole = text.start.clone()
    outputs = rule(text.picked(range(40)), [0], [StateSpan(0, 40, 0, target=1)], whole)
    torch.set_num_threads(num_threads)
    pieces, first, source = text.start.clone(), 0, 0

    for count in cuts:
        num_drafts = min(3, NUM_ROWS - first - count)
        own = StateSpan(0, count, num_drafts, source=source, target=1)
        neighbour = StateSpan(count + num_drafts, 2, 0, source=4, target=4)
        rows = text.picked([*range(first, first + count + num_drafts), 0, 1])
        made = rule(rows, [0, count + num_drafts], [own, neighbour], pieces)
        assert torch.equal(made[:count], outputs[first : first + count])
        first, source = first + count, 1

    assert torch.equal(pieces[1], whole[1])


def test_a_snapshot_holds_what_a_pass_that_ends_there_would_leave() -> None:
    text, rule = Text(64), native()
    with_snapshot, without = text.start.clone(), text.start.clone()

    rule(text.rows, [0], [StateSpan(0, 50, 0, target=1, snapshots=((13, 5),))], with_snapshot)
    rule(text.picked(range(13)), [0], [StateSpan(0, 13, 0, target=5)], without)

    assert torch.equal(with_snapshot[5], without[5])


def test_drafts_alone_and_passes_that_are_thrown_away_change_no_state() -> None:
    text, rule = Text(32), native()
    matrices = text.start.clone()

    rule(text.picked(range(5)), [0], [StateSpan(0, 0, 5, source=3, target=3)], matrices)
    rule(text.picked(range(5)), [0], [StateSpan(0, 5, 0, source=3)], matrices)

    assert torch.equal(matrices, text.start)


def test_a_span_of_drafts_alone_takes_its_source_over() -> None:
    text, rule = Text(32), native()
    matrices = text.start.clone()

    rule(text.picked(range(2)), [0], [StateSpan(0, 0, 2, source=3, target=6)], matrices)

    assert torch.equal(matrices[6], text.start[3])
