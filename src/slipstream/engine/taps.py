"""What the target computed in a step and keeps, for drafters that read its states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.engine.batching import StepBatch, StepItem
from slipstream.execution.batch import ForwardOutput
from slipstream.speculation.drafter import TargetRows


def target_rows(
    batch: StepBatch, paths: Mapping[str, Sequence[int]], output: ForwardOutput
) -> list[TargetRows]:
    """Rows of all requests of a pass, after they were committed.

    Args:
        paths: Request id -> draft nodes that became output.
    """
    return [_rows_of(item, paths.get(item.request.request_id, ()), output) for item in batch.items]


def _rows_of(item: StepItem, path: Sequence[int], output: ForwardOutput) -> TargetRows:
    request = item.request
    lease = request.lease
    assert lease is not None, "a request in a pass holds a lease"
    num_known = item.num_tokens
    rows = np.arange(item.first_row, item.first_row + num_known + len(path), dtype=np.int64)
    rows[num_known:] = path
    rows[num_known:] += item.first_row + num_known
    stop = lease.num_tokens
    return TargetRows(
        request_id=request.request_id,
        slots=lease.slots(0, stop),
        next_tokens=request.tokens[stop - len(rows) + 1 : stop + 1],
        rows=rows,
        taps=output.taps,
    )
