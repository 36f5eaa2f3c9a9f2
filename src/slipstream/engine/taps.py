"""What the target computed and keeps, for drafters that read its states: told when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.engine.batching import StepBatch, StepItem
from slipstream.engine.request import Request
from slipstream.execution.batch import ForwardOutput, IntArray
from slipstream.speculation.drafter import TargetRows

MAX_ROWS = 64
"""Rows of passes whose states are kept. Told together, each costs a small part of one alone; more
of them would hold up one step for longer and save no more."""

Taps = Mapping[int, Tensor]
"""Layer -> [rows of a pass, hidden] its output."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one pass that stay: where they are in its taps."""

    taps: Taps
    rows: IntArray


@dataclass(frozen=True, slots=True)
class _Untold:
    """Committed rows of one request that no drafter was told of: the last ones that it has.

    Attributes:
        first: Position of the first.
    """

    request: Request
    first: int
    parts: list[_Part]


class TapBacklog:
    """Rows that stay, kept until drafters must know of them.

    Taking in a row costs a drafter nearly as much as taking in many, and a request for which nobody
    drafts needs none of it at the moment. So rows of many steps are told together: before a drafter
    proposes for the request, before others can find its pages in the prefix cache (whoever finds
    pages there can rely on what drafters keep about them), and when they become too many.

    Args:
        tell: Tells the drafters, see `TapReader.absorb`.
        max_rows: Most rows of passes whose taps are kept.
    """

    def __init__(
        self, tell: Callable[[Sequence[TargetRows]], None], max_rows: int = MAX_ROWS
    ) -> None:
        self._tell = tell
        self._max_rows = max_rows
        self._num_rows = 0
        self._untold: dict[str, _Untold] = {}

    @property
    def request_ids(self) -> frozenset[str]:
        """Requests with rows that nobody was told of."""
        return frozenset(self._untold)

    def add(
        self, batch: StepBatch, paths: Mapping[str, Sequence[int]], output: ForwardOutput
    ) -> None:
        """Take the rows of a pass, after they were committed.

        Args:
            paths: Request id -> draft nodes that became output.
        """
        self._num_rows += len(batch.forward.tokens)
        shared: list[str] = []
        for item in batch.items:
            request_id, lease = item.request.request_id, item.request.lease
            assert lease is not None, "a request in a pass holds a lease"
            rows = _kept_rows(item, paths.get(request_id, ()))
            untold = self._untold.get(request_id)
            if untold is None:
                untold = _Untold(item.request, lease.num_tokens - len(rows), [])
                self._untold[request_id] = untold
            untold.parts.append(_Part(output.taps, rows))
            if lease.num_published > untold.first:
                shared.append(request_id)
        if self._num_rows > self._max_rows:
            self.settle(list(self._untold))
        elif shared:
            self.settle(shared)

    def settle(self, request_ids: Iterable[str]) -> None:
        """Tell the drafters all that these requests have; in one call."""
        due = [untold for name in request_ids if (untold := self._untold.pop(name, None))]
        if not due:
            return
        self._tell(_target_rows(due))
        left = [part.taps for item in self._untold.values() for part in item.parts]
        self._num_rows = sum(_num_rows(taps) for taps in {id(taps): taps for taps in left}.values())

    def close(self, request: Request) -> None:
        """Tell what a request has whose lease is about to be closed."""
        self.settle([request.request_id])


def _kept_rows(item: StepItem, path: Sequence[int]) -> IntArray:
    """Rows of the pass that stay."""
    first_node = item.first_row + item.num_tokens
    rows = np.arange(item.first_row, first_node + len(path), dtype=np.int64)
    if path and path[-1] != len(path) - 1:  # not the first nodes
        rows[item.num_tokens :] = path
        rows[item.num_tokens :] += first_node
    return rows


def _target_rows(due: Sequence[_Untold]) -> list[TargetRows]:
    """All of these rows, over the taps of all their passes in a row."""
    taps = due[0].parts[0].taps
    if all(part.taps is taps for untold in due for part in untold.parts):
        return [_rows_of(untold, untold.parts[0].rows, taps) for untold in due]
    passes = {id(part.taps): part.taps for untold in due for part in untold.parts}
    first_rows: dict[int, int] = {}
    num_rows = 0
    for name, of_pass in passes.items():
        first_rows[name] = num_rows
        num_rows += _num_rows(of_pass)
    taps = {layer: torch.cat([of_pass[layer] for of_pass in passes.values()]) for layer in taps}
    rows = [[part.rows + first_rows[id(part.taps)] for part in untold.parts] for untold in due]
    return [
        _rows_of(untold, np.concatenate(of_it), taps)
        for untold, of_it in zip(due, rows, strict=True)
    ]


def _num_rows(taps: Taps) -> int:
    return len(next(iter(taps.values())))


def _rows_of(untold: _Untold, rows: IntArray, taps: Taps) -> TargetRows:
    request, lease = untold.request, untold.request.lease
    assert lease is not None, "rows are told before their lease is closed"
    stop = lease.num_tokens
    assert stop - untold.first == len(rows), "no committed row is left out"
    return TargetRows(
        request_id=request.request_id,
        slots=lease.slots(0, stop),
        next_tokens=request.tokens[untold.first + 1 : stop + 1],
        rows=rows,
        taps=taps,
    )
