"""Strings that an output never completes, however it is cut into tokens.

The bytes decide. A token is banned when it contains a word, or when it begins with the rest of a
word that the text before it has begun; a token that only brings a word further is free. Control
tokens show no bytes: they end no word and break none off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from slipstream.sampling.token_bytes import IntArray, TokenBytes

_NO_IDS: IntArray = np.empty(0, np.int64)
_MAX_KEPT = 256  # tails whose bans are remembered


class BadWords:
    """The bad words of one request over one vocabulary; shared by all its rows.

    A row's own part is its tail: the longest end of its text that is the beginning of a word. It
    holds all that matters of the text, since a word that has begun earlier has gone another way.

    Args:
        words: As in `SamplingParams.bad_words`.
        token_bytes: What each token gives to the text.
        silent_ids: Tokens that give nothing although they have bytes, as those that end the output.

    Attributes:
        always: Ids of the tokens that contain a word.
    """

    def __init__(
        self, words: Iterable[str], token_bytes: TokenBytes, silent_ids: Collection[int] = ()
    ) -> None:
        self._words = sorted({word.encode() for word in words})
        self._token_bytes = token_bytes
        self._silent_ids = np.array(sorted(silent_ids), dtype=np.int64)
        self._first_bytes = frozenset(word[0] for word in self._words)
        self._shortest = min(map(len, self._words), default=1)
        self._max_tail_len = max(map(len, self._words), default=1) - 1
        self._kept: dict[bytes, IntArray] = {}
        self.always = self._loud(map(token_bytes.holding, self._words))

    def tail_of(self, tokens: Sequence[int]) -> bytes:
        """The tail of a text of these tokens."""
        text = b""
        for token in reversed(tokens):
            if len(text) >= self._max_tail_len:
                break
            text = self._token_bytes[token] + text
        return self._tail(text)

    def tail_after(self, tail: bytes, token: int) -> bytes:
        """The tail when `token` comes next."""
        return self._tail(tail + self._token_bytes[token])

    def completing(self, tail: bytes) -> IntArray:
        """Ids of the tokens that complete a word begun in `tail`; some may be in `always` too."""
        if not tail:
            return _NO_IDS
        ids = self._kept.get(tail)
        if ids is None:
            ids = self._loud(map(self._token_bytes.beginning_with, self._rests(tail)))
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[tail] = ids
        return ids

    def _tail(self, text: bytes) -> bytes:
        for start in range(max(0, len(text) - self._max_tail_len), len(text)):
            if text[start] in self._first_bytes:
                tail = text[start:]
                if next(self._begun_by(tail), None) is not None:
                    return tail
        return b""

    def _begun_by(self, head: bytes) -> Iterator[bytes]:
        """The words that are `head` and more."""
        for place in range(bisect_right(self._words, head), len(self._words)):
            word = self._words[place]
            if not word.startswith(head):
                break
            yield word

    def _rests(self, tail: bytes) -> set[bytes]:
        """What is missing of the words that the tail's ends begin."""
        # What is missing must fit into a token, of the shortest word too.
        num_starts = min(len(tail), len(tail) + self._token_bytes.longest - self._shortest + 1)
        return {
            word[len(tail) - start :]
            for start in range(num_starts)
            if tail[start] in self._first_bytes
            for word in self._begun_by(tail[start:])
            if len(word) - len(tail) + start <= self._token_bytes.longest
        }

    def _loud(self, parts: Iterable[IntArray]) -> IntArray:
        """The ids of all parts, each once, without the silent ones."""
        ids = np.unique(np.concatenate([_NO_IDS, *parts]))
        return ids[~np.isin(ids, self._silent_ids)] if self._silent_ids.size else ids
