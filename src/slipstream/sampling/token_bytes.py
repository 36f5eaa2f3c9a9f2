"""The vocabulary as bytes: which tokens hold a string, and which begin with one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

_NO_IDS: IntArray = np.empty(0, np.int64)
_NUM_PAIRS = 2**16
_BETWEEN = b"\xff"  # in no UTF-8 text, so that nothing sought reaches from one token to the next


class TokenBytes:
    """An index of the bytes that tokens give to a text.

    What is sought is never empty and is cut from valid UTF-8. Building sorts the vocabulary, which
    takes longer than a step does; looking something up does not.

    Args:
        tokens: The bytes by token id; b"" where a token gives none.

    Attributes:
        longest: Most bytes of a token.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tuple(tokens)
        order = sorted((i for i, data in enumerate(tokens) if data), key=self._tokens.__getitem__)
        self._sorted = [self._tokens[token] for token in order]
        self._sorted_ids: IntArray = np.array(order, dtype=np.int64)
        self.longest = max(map(len, self._sorted), default=0)
        self._text = np.frombuffer(_BETWEEN.join(self._sorted), dtype=np.uint8)
        sizes = np.fromiter(map(len, self._sorted), np.int64, len(self._sorted))
        self._ends = np.cumsum(sizes + 1)
        pairs = self._text[:-1].astype(np.uint16) << 8 | self._text[1:]
        # By pair of bytes, where it stands: a word is sought only where its first two are.
        self._places = np.argsort(pairs, kind="stable").astype(np.int32)
        self._first_places = np.searchsorted(pairs[self._places], np.arange(_NUM_PAIRS + 1))

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token; b"" for ids that the vocabulary lacks."""
        return self._tokens[token] if token < len(self._tokens) else b""

    def holding(self, wanted: bytes) -> IntArray:
        """Tokens that contain `wanted`, in no certain order."""
        if len(wanted) > self.longest:
            return _NO_IDS
        places = self._places_of(wanted[:2])
        places = places[places <= len(self._text) - len(wanted)]
        for offset, byte in enumerate(wanted[2:], start=2):
            places = places[self._text[places + offset] == byte]
        return self._sorted_ids[np.unique(np.searchsorted(self._ends, places, side="right"))]

    def beginning_with(self, wanted: bytes) -> IntArray:
        """Tokens whose first bytes are `wanted`, in no certain order."""
        if len(wanted) > self.longest:
            return _NO_IDS
        behind = wanted[:-1] + bytes([wanted[-1] + 1])  # UTF-8 has no byte 255
        first, last = bisect_left(self._sorted, wanted), bisect_left(self._sorted, behind)
        return self._sorted_ids[first:last]

    def _places_of(self, start: bytes) -> npt.NDArray[np.integer[Any]]:
        if len(start) == 1:
            return np.flatnonzero(self._text == start[0])
        pair = int.from_bytes(start, "big")
        return self._places[self._first_places[pair] : self._first_places[pair + 1]]
