"""One sequence computed pass by pass over paged keys and values, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.execution.batch import Branch, ForwardBatch, ForwardOutput
from slipstream.execution.runner import Runner
from slipstream.kv.cache import KvCache


class PagedSequence:
    """Grows by the tokens it is given; every pass returns the logits of its rows.

    Args:
        kv: Its pages must be those of `runner.storage`.
        name: Unique among the open sequences of `kv`.
    """

    def __init__(self, runner: Runner, kv: KvCache, name: str) -> None:
        self._runner = runner
        self._lease = kv.open(name, (), "", use_prefix=False)

    def extend(
        self, tokens: Sequence[int], tap_layer_ids: tuple[int, ...] = ()
    ) -> ForwardOutput:  # logits [len(tokens), vocab], taps [len(tokens), hidden]
        """Compute `tokens` in one pass behind what is there."""
        start, count = self._lease.num_tokens, len(tokens)
        self._lease.reserve(count)
        slots = self._lease.slots(0, start + count)
        positions = np.arange(start, start + count, dtype=np.int64)
        rows = np.arange(count, dtype=np.int64)
        output = self._runner.forward(
            ForwardBatch(
                tokens=np.array(tokens, dtype=np.int64),
                positions=positions,
                slots=slots[start:],
                branches=(Branch(rows, positions, slots),),
                logit_rows=rows,
                tap_layer_ids=tap_layer_ids,
            )
        )
        self._lease.commit(count)
        return output

    def close(self) -> None:
        """Give the pages back."""
        self._lease.close()
