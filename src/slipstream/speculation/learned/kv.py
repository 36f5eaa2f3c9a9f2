"""A draft net's keys and values of committed positions, kept in the target's own slots.

A slot of the target's cache stands for a token with everything before it, and so does what a
draft net computes from the target's states there. Sharing slots makes prefix hits, rollback,
preemption and release exact without a word about drafters: rows are written for committed
positions only, after the target's rows have been compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.execution.batch import IntArray
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.parts import Context, LayerKv


class DraftKv:
    """Reads and writes a storage that has as many slots as the target's.

    Args:
        storage: One layer per draft layer.
    """

    def __init__(self, storage: KvStorage) -> None:
        self.storage = storage

    def write(self, slots: IntArray, layers: Sequence[LayerKv]) -> None:
        """Store rows: keys and values [rows, kv_heads, head_dim] by layer, in slots [rows]."""
        where = torch.from_numpy(np.ascontiguousarray(slots))
        for index, layer in enumerate(layers):
            self.storage.write(index, where, layer.keys, layer.values)

    def context(self, tables: Sequence[IntArray]) -> Context:
        """What several requests have stored, one block each.

        Args:
            tables: By request, [len] slots of its rows at rotary positions 0, 1, ...
        """
        lens = torch.tensor([len(table) for table in tables])
        longest = int(lens.max())
        padded = np.zeros((len(tables), longest), np.int64)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        slots = torch.from_numpy(padded).flatten()
        layers: list[LayerKv] = []
        for index in range(self.storage.num_layers):
            keys, values = self.storage.gather(index, slots)
            shape = (len(tables), longest, *keys.shape[1:])
            layers.append(LayerKv(keys.view(shape), values.view(shape)))
        positions = torch.arange(longest).expand(len(tables), -1)
        is_visible: Tensor = positions < lens.unsqueeze(1)
        return Context(layers, positions, is_visible.unsqueeze(1))
