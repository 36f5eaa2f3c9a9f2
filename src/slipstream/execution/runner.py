"""One target pass: from a flat batch to logits."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.attention.backend import AttentionBackend
from slipstream.execution.batch import ForwardBatch, ForwardOutput, IntArray
from slipstream.execution.host_allocator import keep_freed_memory
from slipstream.execution.kernel_usage import KernelUsage
from slipstream.execution.row_tiles import AnyRows, RowTiles
from slipstream.kv.storage import KvStorage
from slipstream.models.decoder import DecoderInput, Model

_SCRATCH_SLOT = 0


class Runner:
    """Runs passes of one model over one KV storage.

    Args:
        model: The decoder.
        storage: Its keys and values; slot 0 is scratch, where rows that only pad are stored.
        attention: None takes the one that goes with the model.
    Attributes:
        usage: Which kernels have served its passes.
    Raises:
        NumericsError: If this machine cannot compute exactly.
    """

    def __init__(
        self, model: Model, storage: KvStorage, attention: AttentionBackend | None = None
    ) -> None:
        keep_freed_memory()
        self.model = model
        self.storage = storage
        self.attention = attention or model.attention_backend()
        self.usage = KernelUsage(model, self.attention.kernel(storage.dtype))
        self._windows = {layer.window for layer in model.hparams.layers}
        self._prove()

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Compute every row of the batch, store its key and value, return what is asked for."""
        if torch.get_num_threads() != self._num_threads:
            self.attention.prove()
            self._prove()
        inputs = self._inputs(batch)
        output = self.model.forward(inputs, self.storage)
        self.usage.passed(inputs)
        num_rows, num_logit_rows = len(batch.tokens), len(batch.logit_rows)
        logits, taps = output.logits, output.taps
        if num_logit_rows < len(inputs.logit_rows):
            logits = logits[:num_logit_rows]
        if num_rows < len(inputs.tokens):
            taps = {layer: tap[:num_rows] for layer, tap in taps.items()}
        return ForwardOutput(logits, taps)

    def numerics(self) -> dict[str, str]:
        """What decides the bits of a result besides the weights; part of the fingerprint."""
        return {
            "torch": str(torch.__version__),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "kv_dtype": str(self.storage.dtype).removeprefix("torch."),
            "linear": self.model.linear_kinds(),
            "attention": self.attention.name,
        }

    def description(self) -> dict[str, str]:
        """How the machine is used, without effect on a result's bits: for logs."""
        return {
            "num_threads": str(self._num_threads),
            "row_tiles": str(self._tiles),
            "logit_row_tiles": str(self._logit_tiles),
        }

    def _prove(self) -> None:
        """Find the exact row counts for the present number of threads."""
        self._num_threads = torch.get_num_threads()
        self._tiles = _tiles(self.model.admitted_row_counts())
        self._logit_tiles = _tiles(self.model.admitted_logit_row_counts())

    def _inputs(self, batch: ForwardBatch) -> DecoderInput:
        cuts = self._tiles.cover(len(batch.tokens))
        logit_cuts = self._logit_tiles.cover(len(batch.logit_rows))
        num_rows = sum(cuts)
        return DecoderInput(
            tokens=_padded(batch.tokens, num_rows, 0),
            positions=_padded(batch.positions, num_rows, 0),
            slots=_padded(batch.slots, num_rows, _SCRATCH_SLOT),
            max_position=max((len(branch.slots) for branch in batch.branches), default=1) - 1,
            cuts=cuts,
            cover=self._tiles.cover,
            attention={
                window: self.attention.prepare(batch.branches, num_rows, window)
                for window in self._windows
            },
            logit_rows=_padded(batch.logit_rows, sum(logit_cuts), 0),
            logit_cuts=logit_cuts,
            tap_layer_ids=batch.tap_layer_ids,
            spans=batch.spans,
        )


def _tiles(admitted: tuple[int, ...] | None) -> RowTiles | AnyRows:
    return AnyRows() if admitted is None else RowTiles(admitted)


def _padded(values: IntArray, length: int, filler: int) -> IntArray:
    if len(values) == length:
        return np.ascontiguousarray(values, np.int64)
    padded = np.full(length, filler, np.int64)
    padded[: len(values)] = values
    return padded
