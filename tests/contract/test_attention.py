"""What every attention backend promises, run over each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionBackend, AttentionShape, IntArray
from slipstream.attention.reference import TorchAttention
from slipstream.kv.storage import KvStorage

BACKENDS: dict[str, Callable[[AttentionShape], AttentionBackend]] = {"torch": TorchAttention}
SHAPES = {
    "smollm2": AttentionShape(9, 3, 64, 0.125),
    "one head each": AttentionShape(4, 4, 16, 0.25),
    "one key head": AttentionShape(4, 1, 24, 24**-0.5),
    "wide": AttentionShape(8, 2, 128, 128**-0.5),
}
NUM_SLOTS = 4096
LAYER = 1


@dataclass(frozen=True)
class Span:
    """Rows at consecutive positions; the shape of a `Branch`."""

    rows: IntArray
    positions: IntArray
    slots: IntArray


class World:
    """A storage full of random keys and values, and a query for every position of sequences."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(5)
        self.shape = shape
        self.storage = KvStorage(NUM_SLOTS, 2, shape.kv_heads, shape.head_dim, dtype)
        size = (NUM_SLOTS, shape.kv_heads, shape.head_dim)
        keys = torch.randn(size, generator=generator) * 2
        values = torch.randn(size, generator=generator)
        self.storage.write(LAYER, torch.arange(NUM_SLOTS), keys, values)
        self.slots = np.random.default_rng(5).permutation(np.arange(1, NUM_SLOTS))
        self.queries = torch.randn(
            NUM_SLOTS, shape.num_heads, shape.head_dim, generator=generator
        )  # of the token whose key is in that slot

    def sequence(self, index: int, length: int) -> IntArray:
        """Slots of sequence `index`."""
        return self.slots[index * 600 : index * 600 + length]

    def attend(
        self, backend: AttentionBackend, parts: Sequence[tuple[IntArray, int]], window: int | None
    ) -> list[Tensor]:
        """One pass over parts (slots of a sequence, first position); one result per part."""
        spans, queries, end = [], [], 0
        for slots, start in parts:
            count = len(slots) - start
            spans.append(Span(np.arange(end, end + count), np.arange(start, len(slots)), slots))
            queries.append(self.queries[torch.from_numpy(slots[start:])])
            end += count
        prepared = backend.prepare(spans, end + 3, window)  # three rows that only pad
        padding = torch.zeros(3, self.shape.num_heads, self.shape.head_dim)
        mixed = prepared.attend(LAYER, torch.cat((*queries, padding)), self.storage)
        assert mixed.shape == (end + 3, self.shape.num_heads * self.shape.head_dim)
        assert torch.isfinite(mixed).all()
        return list(mixed[:end].split_with_sizes([len(slots) - start for slots, start in parts]))

    def in_float64(self, slots: IntArray, window: int | None) -> Tensor:
        """Textbook attention of a whole sequence."""
        index = torch.from_numpy(slots)
        groups = self.shape.group_size
        keys, values = (
            stored.double().repeat_interleave(groups, 1)
            for stored in self.storage.gather(LAYER, index)
        )
        scores = torch.einsum("qhd,khd->hqk", self.queries[index].double(), keys)
        distance = torch.arange(len(slots))[:, None] - torch.arange(len(slots))
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        scores = (scores * self.shape.scale).masked_fill(hidden, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> AttentionShape:
    return SHAPES[request.param]


@pytest.fixture(
    params=[torch.float32, torch.bfloat16, torch.int8], ids=["float32", "bfloat16", "int8"]
)
def world(request: pytest.FixtureRequest, shape: AttentionShape) -> World:
    return World(shape, request.param)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, shape: AttentionShape) -> AttentionBackend:
    torch.set_num_threads(1)
    return BACKENDS[request.param](shape)


WINDOWS = pytest.mark.parametrize("window", [None, 1, 50, 200])


@WINDOWS
def test_it_computes_softmax_attention(
    backend: AttentionBackend, world: World, window: int | None
) -> None:
    slots = world.sequence(0, 400)

    (mixed,) = world.attend(backend, [(slots, 0)], window)

    assert (mixed - world.in_float64(slots, window)).abs().max() < 2e-5


@WINDOWS
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_in_the_whole(
    backend: AttentionBackend, world: World, window: int | None
) -> None:
    slots = world.sequence(0, 400)
    (whole,) = world.attend(backend, [(slots, 0)], window)

    for start, stop in ((0, 1), (127, 128), (128, 129), (399, 400), (100, 133), (250, 390)):
        (part,) = world.attend(backend, [(slots[:stop], start)], window)
        assert torch.equal(part, whole[start:stop])


@WINDOWS
def test_a_row_has_the_same_bits_whatever_shares_its_pass(
    backend: AttentionBackend, world: World, window: int | None
) -> None:
    rng = np.random.default_rng(1)
    wholes = [world.attend(backend, [(world.sequence(i, 500), 0)], window)[0] for i in range(5)]

    for _ in range(6):
        chosen = rng.permutation(5)[: rng.integers(2, 6)]
        bounds = [sorted(rng.choice(501, 2, replace=False)) for _ in chosen]
        parts = [
            (world.sequence(int(i), int(stop)), int(start))
            for i, (start, stop) in zip(chosen, bounds, strict=True)
        ]
        results = world.attend(backend, parts, window)
        for i, (start, stop), result in zip(chosen, bounds, results, strict=True):
            assert torch.equal(result, wholes[i][start:stop])


def test_keys_that_a_row_cannot_see_have_no_effect(backend: AttentionBackend, world: World) -> None:
    slots = world.sequence(0, 300)
    (before,) = world.attend(backend, [(slots[:200], 150)], None)
    others = torch.from_numpy(np.setdiff1d(np.arange(NUM_SLOTS), slots[:200]))
    huge = torch.full((len(others), world.shape.kv_heads, world.shape.head_dim), 1e30)

    world.storage.write(LAYER, others, huge, huge)

    (after,) = world.attend(backend, [(slots[:200], 150)], None)
    assert torch.equal(before, after)


def test_branches_that_share_a_prefix_read_it_alike(
    backend: AttentionBackend, world: World
) -> None:
    prefix, left, right = world.sequence(0, 140), world.sequence(1, 4), world.sequence(2, 2)
    alone = [
        world.attend(backend, [(np.concatenate((prefix, tail)), 140)], None)[0]
        for tail in (left, right)
    ]

    together = world.attend(
        backend, [(np.concatenate((prefix, tail)), 140) for tail in (left, right)], None
    )

    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("shape", ["smollm2", "one key head"], indirect=True)
def test_more_threads_give_the_same_bits(backend: AttentionBackend, world: World) -> None:
    slots = world.sequence(0, 300)
    (with_one,) = world.attend(backend, [(slots, 0)], None)

    torch.set_num_threads(2)
    try:
        backend.prove()
        (with_two,) = world.attend(backend, [(slots, 0)], None)
    finally:
        torch.set_num_threads(1)

    assert torch.equal(with_one, with_two)
