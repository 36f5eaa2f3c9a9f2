"""A target in memory with room for a few sequences, as audits of models and drafters use it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import torch

from slipstream.audit.paged_sequence import PagedSequence
from slipstream.execution.runner import Runner
from slipstream.kv.cache import KvCache
from slipstream.kv.states import StatePool
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint

_PAGE_SIZE = 16


class LoadedTarget:
    """A float32 runner with pages for a few sequences.

    Args:
        folder: The checkpoint, loaded as a user would.
        max_len: Longest sequence.
    Raises:
        WeightsError: The checkpoint cannot be loaded.
    """

    def __init__(self, folder: Path, max_len: int) -> None:
        checkpoint = open_checkpoint(folder)
        model = load_model(checkpoint, torch.float32)
        checkpoint.finish()
        shape = model.hparams
        self.model = model
        num_states = 3 if shape.state_shape is not None else 0
        self.kv = KvCache(
            3 * -(-max_len // _PAGE_SIZE),
            _PAGE_SIZE,
            prefix_cache=False,
            states=StatePool(num_states, max_len, max_len) if num_states else None,
        )
        storage = shape.kv_shape.storage(self.kv.num_slots, torch.float32)
        if shape.state_shape is not None:
            storage.states = shape.state_shape.storage(num_states, max_len)
        self.runner = Runner(model, storage)
        self.num_layers = shape.num_layers
        self._names = count()

    def sequence(self) -> PagedSequence:
        """A new, empty sequence."""
        return PagedSequence(self.runner, self.kv, f"sequence-{next(self._names)}")
