"""What goes into one target pass and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.kv.states import StateSpan

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Branch:
    """One sequence of rows that attend over one list of KV slots.

    A chain, a prompt chunk and each root-to-leaf path of a draft tree are branches: a row at
    position p reads the slots 0..p of its branch. A tree's node therefore reads its ancestors in
    their positions' places, which makes it bit-identical to the same token decoded plainly.

    Attributes:
        rows: [n] indices into the batch's flat rows.
        positions: [n] position of each row, ascending.
        slots: [positions[-1] + 1] KV slot of each position of this branch.
    """

    rows: IntArray
    positions: IntArray
    slots: IntArray


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Flat rows of one pass over prompt chunks and draft nodes of all requests.

    Attributes:
        tokens: [tokens] int64 token ids.
        positions: [tokens] int64 position of each row.
        slots: [tokens] int64 KV slot that each row's key and value are stored in.
        branches: How rows attend. Every row is in exactly one branch.
        logit_rows: [rows] int64 rows whose logits are wanted.
        tap_layer_ids: Layers whose output is wanted for every row (-1 = embedding output).
        spans: Rows of each sequence, where the model has recurrent layers.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    branches: tuple[Branch, ...]
    logit_rows: IntArray
    tap_layer_ids: tuple[int, ...] = ()
    spans: tuple[StateSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Result of one pass.

    Attributes:
        rows: [rows, vocab] float32 logits, for `ForwardBatch.logit_rows` in order.
        taps: Layer id -> [tokens, hidden] residual stream after that layer.
    """

    rows: FloatArray
    taps: dict[int, Tensor]

    @property
    def logits(self) -> Tensor:
        """`rows` as a tensor over the same memory; making one costs a step 50 us."""
        return torch.from_numpy(self.rows)
