"""One sequence computed pass by pass over paged keys and values, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.execution.batch import Branch, ForwardBatch, ForwardOutput, IntArray
from slipstream.execution.runner import Runner
from slipstream.kv.cache import KvCache

_ROOT = -1


class PagedSequence:
    """Grows by the tokens it is given; every pass returns the logits of its rows.

    Args:
        kv: Its pages must be those of `runner.storage`.
        name: Unique among the open sequences of `kv`.
    """

    def __init__(self, runner: Runner, kv: KvCache, name: str) -> None:
        self._runner = runner
        self._lease = kv.open(name, (), "", use_prefix=False)

    @property
    def num_tokens(self) -> int:
        """Rows that stay."""
        return self._lease.num_tokens

    def slots(self) -> IntArray:
        """[num_tokens] slots of the rows that stay."""
        return self._lease.slots(0, self._lease.num_tokens).copy()

    def extend(
        self, tokens: Sequence[int], tap_layer_ids: tuple[int, ...] = ()
    ) -> ForwardOutput:  # logits [len(tokens), vocab], taps [len(tokens), hidden]
        """Compute `tokens` in one pass behind what is there."""
        chain = range(-1, len(tokens) - 1)
        output = self.compute(tokens, chain, tap_layer_ids, num_known=len(tokens))
        self.keep(range(len(tokens)))
        return output

    def compute(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        tap_layer_ids: tuple[int, ...] = (),
        *,
        num_known: int = 0,
    ) -> ForwardOutput:
        """Compute a chain or a tree behind what is there; `keep` must say what of it stays.

        Args:
            parents: Index of each token's parent among `tokens`; -1 stands behind what is there.
            num_known: Leading tokens that will be kept.
        """
        start, count = self._lease.num_tokens, len(tokens)
        self._lease.reserve(count)
        slots = self._lease.slots(0, start + count)
        rows = np.arange(count, dtype=np.int64)
        if list(parents) == list(range(-1, count - 1)):
            positions = start + rows
            branches: tuple[Branch, ...] = (Branch(rows, positions, slots),)
        else:
            paths = _paths(parents)
            positions = np.array([start + len(path) - 1 for path in paths], dtype=np.int64)
            branches = tuple(
                Branch(
                    rows[row : row + 1],
                    positions[row : row + 1],
                    np.concatenate([slots[:start], slots[start + np.array(path)]]),
                )
                for row, path in enumerate(paths)
            )
        span = self._lease.span(0, num_known, count - num_known)
        return self._runner.forward(
            ForwardBatch(
                tokens=np.array(tokens, dtype=np.int64),
                positions=positions,
                slots=slots[start:],
                branches=branches,
                logit_rows=rows,
                tap_layer_ids=tap_layer_ids,
                spans=() if span is None else (span,),
            )
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Of the last `compute`, make a path's rows stay and forget the others."""
        moves = self._lease.compact(list(rows))
        self._runner.storage.copy(moves.sources, moves.targets)
        self._lease.commit(len(rows))
        self._lease.rollback()

    def close(self) -> None:
        """Give the pages back."""
        self._lease.close()


def _paths(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Each row's path from the front, the row itself included."""
    paths: list[tuple[int, ...]] = []
    for row, parent in enumerate(parents):
        paths.append((*(() if parent == _ROOT else paths[parent]), row))
    return paths
