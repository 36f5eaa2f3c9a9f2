"""Passes over hand-made KV slots, without the KV cache: what tests of models and runners need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from slipstream.execution.batch import Branch, ForwardBatch, ForwardOutput, IntArray
from slipstream.execution.runner import Runner
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint


@dataclass
class SlotSource:
    """Gives out slots in a scattered order, never slot 0."""

    num_slots: int
    seed: int = 0
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self._free = (rng.permutation(self.num_slots - 1) + 1).tolist()

    def take(self, count: int) -> IntArray:
        """`count` fresh slots."""
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count, "the test needs a larger storage"
        return np.array(taken, np.int64)


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one sequence, the first at position `start`.

    Attributes:
        tokens: [n] token ids.
        slots: [start + n or more] slot of every position of the sequence.
    """

    tokens: Sequence[int]
    start: int
    slots: IntArray


def make_runner(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    kv_dtype: torch.dtype | None = None,
    num_slots: int = 2048,
) -> Runner:
    """A runner of a checkpoint with a storage of its own."""
    model = load_model(open_checkpoint(path), dtype)
    shape = model.hparams
    storage = shape.kv_shape.storage(num_slots, kv_dtype or dtype)
    return Runner(model, storage)


def chunk_batch(chunks: Sequence[Chunk], tap_layer_ids: tuple[int, ...] = ()) -> ForwardBatch:
    """One pass over the chunks in order, with the logits of every row."""
    lens = [len(chunk.tokens) for chunk in chunks]
    ends = np.cumsum(lens)
    positions = [np.arange(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
    branches = [
        Branch(np.arange(end - n, end), where, chunk.slots[: chunk.start + n])
        for chunk, where, n, end in zip(chunks, positions, lens, ends, strict=True)
    ]
    return ForwardBatch(
        tokens=np.concatenate([np.asarray(chunk.tokens, np.int64) for chunk in chunks]),
        positions=np.concatenate(positions),
        slots=np.concatenate(
            [chunk.slots[chunk.start : chunk.start + len(chunk.tokens)] for chunk in chunks]
        ),
        branches=tuple(branches),
        logit_rows=np.arange(sum(lens)),
        tap_layer_ids=tap_layer_ids,
    )


def run_chunks(
    runner: Runner, chunks: Sequence[Chunk], tap_layer_ids: tuple[int, ...] = ()
) -> ForwardOutput:
    """Run one pass over the chunks."""
    return runner.forward(chunk_batch(chunks, tap_layer_ids))
