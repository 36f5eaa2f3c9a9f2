"""Drawing from many rows in one call of the native kernels.

Threads share the requests. A row is read twice at most, and noise is computed only where a token
could still win; processors reach the kernel as the few logits that they change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from slipstream.kernels.address import address_of
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.structs import DRAW, DrawCall
from slipstream.sampling.noise import FloatArray, IntArray
from slipstream.sampling.processors import NO_EDITS, Processors

if TYPE_CHECKING:
    from slipstream.sampling.sampler import RowRequest

Int32Array = npt.NDArray[np.int32]

_LEAST_ROOM = 64  # rows, and tokens that they draw
_PLACE_BYTES = 4


class _Seen(NamedTuple):
    """Tokens that a row's penalties are about, in memory that somebody holds."""

    tokens: int
    counts: int
    num_seen: int


_NONE_SEEN = _Seen(0, 0, 0)

NO_NODES: Int32Array = np.empty((2, 0), dtype=np.int32)


class DrawnRow(NamedTuple):
    """One row to draw from.

    Attributes:
        row: Of the logits.
        processors: Prepared from the request's parameters.
        nodes: [2, nodes] tokens of a tree, then parents, which come first; -1 is the row itself. A
            node's own row is `node + 1` rows further. Only where the parameters need no state, and
            what they change is the same in every row.
    """

    row: int
    request: RowRequest
    processors: Processors
    nodes: Int32Array = NO_NODES


class TokenSubset:
    """The tokens of rows that do not have the whole vocabulary.

    Args:
        token_ids: [columns] ids in the target's vocabulary, ascending, each once.
        vocab_size: Of the target.
    Raises:
        ValueError: They are not.
    """

    def __init__(self, token_ids: Sequence[int] | IntArray, vocab_size: int) -> None:
        self.ids = np.array(token_ids, dtype=np.int64)
        if not self.ids.size or (np.diff(self.ids, prepend=-1, append=vocab_size) < 1).any():
            raise ValueError(f"a subset has ids from 0 to {vocab_size - 1}, each once, ascending")
        self.native_ids = self.ids.astype(np.uint32)
        self.columns = np.full(vocab_size, -1, dtype=np.int64)
        self.columns[self.ids] = np.arange(self.ids.size)


class NativeRows:
    """Draws as `RowRule` does, where rounding cannot decide.

    Where it could, the rule itself has to be asked: where two tokens' scores are nearly equal or a
    filter's sum nearly meets its bound, some rows in a million, and where there is no token at all.

    Args:
        vocab_size: Columns of a row that are read.
    """

    def __init__(self, kernels: KernelLibrary, vocab_size: int) -> None:
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._scratch = np.empty(vocab_size, dtype=np.float32)
        self._hold(num_rows=_LEAST_ROOM, num_places=_LEAST_ROOM)

    def draw(self, logits: FloatArray, rows: Sequence[DrawnRow]) -> list[list[int]]:
        """The tokens of each walk from its row on; it ends early where the rule has to be asked.

        Args:
            logits: [any number, vocab or more] float32, each row without gaps.
        """
        lens = [1 + row.nodes.shape[1] for row in rows]
        num_places = sum(lens)
        self._make_room(len(rows), num_places)
        call = DrawCall(size=self._vocab_size, count=1)
        self._call(logits, rows, self._places_address, lens, call)
        tokens = self._places[:num_places].tolist()
        if num_places == len(rows):
            return [[token] if token >= 0 else [] for token in tokens]
        walks: list[list[int]] = []
        first = 0
        for length in lens:
            walk = tokens[first : first + length]
            walks.append(walk[: walk.index(-1)] if -1 in walk else walk)
            first += length
        return walks

    def best(
        self,
        logits: FloatArray,
        rows: Sequence[DrawnRow],
        count: int,
        subset: TokenSubset | None = None,
    ) -> tuple[Int32Array, FloatArray]:
        """Columns and probabilities of the `count` best tokens of each row, best first.

        Returns: [rows, count] each; -1 and 0 where a row has fewer, and all of them where the rule
            has to be asked.
        """
        self._make_room(len(rows), 0)
        places = np.empty((len(rows), count), dtype=np.int32)
        probs = np.empty((len(rows), count), dtype=np.float32)
        call = DrawCall(size=self._vocab_size, count=count, probs=probs.ctypes.data)
        if subset is not None:
            call.size, call.token_ids = subset.ids.size, subset.native_ids.ctypes.data
        columns = None if subset is None else subset.columns
        self._call(logits, rows, places.ctypes.data, [count] * len(rows), call, columns)
        return places, probs

    def _make_room(self, num_rows: int, num_places: int) -> None:
        """Grow, never shrink: a step of few rows with many drafts may come before one of many."""
        present = self._num_rows, self._places.size
        if num_rows > present[0] or num_places > present[1]:
            self._hold(max(2 * num_rows, present[0]), max(2 * num_places, present[1]))

    def _hold(self, num_rows: int, num_places: int) -> None:
        """Make room for arguments and results, whose addresses are then known."""
        self._num_rows = num_rows
        self._draws = ctypes.create_string_buffer(DRAW.size * num_rows)
        self._draws_address = ctypes.addressof(self._draws)
        self._places: Int32Array = np.empty(num_places, dtype=np.int32)
        self._places_address = self._places.ctypes.data

    def _call(
        self,
        logits: FloatArray,
        rows: Sequence[DrawnRow],
        places: int,
        lens: Sequence[int],
        call: DrawCall,
        columns: IntArray | None = None,
    ) -> None:
        """Fill in what rows share with `call` and run it; `lens` are of the rows' places."""
        base, stride = address_of(logits[0]), logits.strides[0]
        held: list[object] = []  # until the kernel has read them
        seen = {} if columns is not None else _seen(rows, held)
        for number, (row, request, processors, nodes) in enumerate(rows):
            edits, tokens = NO_EDITS, seen.get(number, _NONE_SEEN)
            if tokens is _NONE_SEEN and not processors.is_idle:
                edits = processors.edits(logits[row], request.state, self._scratch, columns)
                held.append(edits)
            DRAW.pack_into(
                self._draws,
                DRAW.size * number,
                base + stride * row,
                *edits.addresses(),
                tokens.tokens,
                tokens.counts,
                address_of(nodes),
                places,
                request.seed,
                request.position,
                *processors.numbers,
                len(edits.places),
                tokens.num_seen,
                nodes.shape[1],
            )
            places += lens[number] * _PLACE_BYTES
        call.draws, call.num_draws = self._draws_address, len(rows)
        call.stride = stride // logits.itemsize
        self._kernels.functions.sl_draw(
            self._kernels.isa, torch.get_num_threads(), ctypes.byref(call)
        )


def _seen(rows: Sequence[DrawnRow], held: list[object]) -> dict[int, _Seen]:
    """By number, for rows that are penalised and no more; `held` holds the memory.

    The kernel penalises where it reads the row: fetching some hundred logits from afar, as `edits`
    has to, takes numpy 50 us.
    """
    asked = [number for number, row in enumerate(rows) if row.processors.only_penalises]
    if not asked:
        return {}
    tokens: list[IntArray] = []
    counts: list[FloatArray] = []
    for number in asked:
        _, request, processors, _ = rows[number]
        drawn = request.state.output_counts
        prompt = processors.prompt_ids(request.state.prompt_tokens)
        tokens += (prompt, np.fromiter(drawn, np.int64, len(drawn)))
        counts += (np.zeros(len(prompt), np.float32), np.fromiter(drawn.values(), np.float32))
    all_tokens, all_counts = np.concatenate(tokens), np.concatenate(counts)
    held += (all_tokens, all_counts)
    token_address, count_address = address_of(all_tokens), address_of(all_counts)
    found: dict[int, _Seen] = {}
    for place, number in enumerate(asked):
        num_seen = len(tokens[2 * place]) + len(tokens[2 * place + 1])
        found[number] = _Seen(token_address, count_address, num_seen)
        token_address += num_seen * all_tokens.itemsize
        count_address += num_seen * all_counts.itemsize
    return found
