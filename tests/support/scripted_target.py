"""A target that computes nothing but reads its KV slots exactly as a model would.

It stores each row's token in the row's slot. A row's logits are a pure function of the tokens that
its branch's slots hold, so any mistake in slots, branches, copies or commits changes the output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from slipstream.execution.batch import ForwardBatch, ForwardOutput, IntArray

LogitsOf = Callable[[tuple[int, ...]], torch.Tensor]


class SlotTokens:
    """Stands in for KvStorage: one token per slot."""

    def __init__(self, num_slots: int) -> None:
        self.tokens = np.full(num_slots, -1, dtype=np.int64)

    def copy(self, sources: IntArray, targets: IntArray) -> None:
        self.tokens[targets] = self.tokens[sources]


class ScriptedTarget:
    """Implements what the engine asks of a Runner.

    Args:
        logits_of: Tokens so far -> [vocab] float32 logits of the next one.
    """

    def __init__(self, num_slots: int, logits_of: LogitsOf) -> None:
        self.storage = SlotTokens(num_slots)
        self._logits_of = logits_of
        self.batches: list[ForwardBatch] = []
        self.before_forward: Callable[[ForwardBatch], None] = lambda batch: None

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        self.before_forward(batch)
        self.batches.append(batch)
        self.storage.tokens[batch.slots] = batch.tokens
        context_of: dict[int, tuple[int, ...]] = {}
        for branch in batch.branches:
            for row, position in zip(branch.rows, branch.positions, strict=True):
                slots = branch.slots[: position + 1]
                assert batch.positions[row] == position
                assert slots[position] == batch.slots[row]
                context_of[int(row)] = tuple(self.storage.tokens[slots].tolist())
        assert len(context_of) == len(batch.tokens), "every row is in exactly one branch"
        rows = [self._logits_of(context_of[int(row)]) for row in batch.logit_rows]
        logits = torch.stack(rows) if rows else torch.empty(0, 1)
        return ForwardOutput(rows=logits.numpy(), taps={})


def hashed_logits(vocab_size: int, memory: int = 3, favourites: int = 4) -> LogitsOf:
    """A random language model: the last `memory` tokens decide, `favourites` tokens stand out."""

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        digest = hashlib.sha256(repr(tokens[-memory:]).encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        logits = generator.normal(0.0, 1.0, vocab_size)
        logits[generator.integers(0, vocab_size, favourites)] += 4.0
        return torch.tensor(logits, dtype=torch.float32)

    return logits_of


def looping_logits(vocab_size: int, loop: Sequence[int]) -> LogitsOf:
    """Always continues a fixed cycle: what follows the last token in `loop`."""

    def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = torch.zeros(vocab_size)
        logits[loop[(list(loop).index(tokens[-1]) + 1) % len(loop)]] = 10.0
        return logits

    return logits_of
