"""Attention in torch: what a row does not see cannot reach it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.attention.backend import AttentionShape
from slipstream.attention.reference import TorchAttention
from slipstream.execution.batch import Branch
from slipstream.kv.storage import KvStorage

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = AttentionShape(4, 2, 16, 0.25)
POSITIONS = np.arange(130, 140)  # of blocks of 128, all see the second and some the first


def attend(storage: KvStorage, window: int | None) -> Tensor:
    queries = torch.randn(10, 4, 16, generator=torch.Generator().manual_seed(1))
    branch = Branch(np.arange(10), POSITIONS, np.arange(1, 141))
    return TorchAttention(SHAPE).prepare([branch], 10, window).attend(0, queries, storage)


def write(storage: KvStorage, slots: Tensor, number: float | None = None) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(len(slots), 2, 16, generator=generator) for _ in range(2)]
    if number is not None:
        rows = [torch.full_like(row, number) for row in rows]
    storage.write(0, slots, *rows)


@pytest.mark.parametrize("window", [None, 6, 20])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, 3e38, -3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_key_that_a_row_does_not_see_cannot_harm_it(
    dtype: torch.dtype, number: float, window: int | None
) -> None:
    storage = KvStorage(160, 1, 2, 16, dtype)
    write(storage, torch.arange(160))
    before = attend(storage, window)
    for position in (115, 127, 135):
        write(storage, torch.arange(160))
        write(storage, torch.tensor([position + 1]), number)
        after = attend(storage, window)
        sees = (position <= POSITIONS) & (position > POSITIONS - (window or 200))
        assert torch.equal(after[~sees], before[~sees])
        assert not bool((after[sees] == before[sees]).all(-1).any())
