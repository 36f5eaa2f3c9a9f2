"""One pass of the draft model: flat rows of known texts and of draft nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from slipstream.execution.batch import Branch, ForwardBatch, ForwardOutput, IntArray


class SlotCopies(Protocol):
    """Storage of keys and values, as far as a drafter needs it."""

    def copy(self, sources: IntArray, targets: IntArray) -> None:
        """Copy the rows of all layers, bit for bit."""
        ...


class DraftRunner(Protocol):
    """What a drafter needs of its model's runner."""

    @property
    def storage(self) -> SlotCopies: ...

    def forward(self, batch: ForwardBatch) -> ForwardOutput: ...


class PassRows:
    """Rows of a pass in the making; each addition is a branch of its own."""

    def __init__(self) -> None:
        self._tokens: list[IntArray] = []
        self._positions: list[IntArray] = []
        self._slots: list[IntArray] = []
        self._branches: list[Branch] = []
        self._logit_rows: list[int] = []
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def add(self, tokens: Sequence[int], slots: IntArray, *, wants_logits: bool) -> None:
        """Append the last tokens of a text.

        Args:
            tokens: [n] ids to compute; the text before them is in the cache.
            slots: [text] slot of each position of the text, those of `tokens` included.
            wants_logits: Whether the last row's logits are wanted.
        """
        num_rows, text_len = len(tokens), len(slots)
        positions = np.arange(text_len - num_rows, text_len, dtype=np.int64)
        rows = np.arange(self._num_rows, self._num_rows + num_rows, dtype=np.int64)
        self._tokens.append(np.array(tokens, dtype=np.int64))
        self._positions.append(positions)
        self._slots.append(slots[text_len - num_rows :])
        self._branches.append(Branch(rows, positions, slots))
        self._num_rows += num_rows
        if wants_logits:
            self._logit_rows.append(self._num_rows - 1)

    def batch(self) -> ForwardBatch:
        """The pass over at least one row; its logits come in the order of the additions."""
        return ForwardBatch(
            tokens=np.concatenate(self._tokens),
            positions=np.concatenate(self._positions),
            slots=np.concatenate(self._slots),
            branches=tuple(self._branches),
            logit_rows=np.array(self._logit_rows, dtype=np.int64),
        )
