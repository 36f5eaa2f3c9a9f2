"""Text as it grows, token by token, without ever showing a part of a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_MAX_INCOMPLETE_BYTES = 3  # a UTF-8 character has at most four bytes


class ByteVocabulary(Protocol):
    """The part of a tokenizer that decoding needs."""

    strips_first_space: bool

    def visible_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that a token gives to the output text; b"" for none."""
        ...


class IncrementalDetokenizer:
    """Turns one output's tokens into text, in constant time per token.

    All pushes and the flush together are what decoding the whole output in one go gives (as the
    continuation of the prompt): an invalid byte sequence becomes U+FFFD as soon as it is certain to
    be invalid, and an unfinished character is held back until it is finished or flushed.

    Args:
        tokenizer: Gives the tokens' bytes.
        prompt_tail: The end of the prompt (or all of it). It matters in two ways: a character that
            the prompt leaves unfinished is completed by the output, and the first space of a text
            is only dropped where the text starts.
        skip_special: Special tokens give no text.
    """

    def __init__(
        self,
        tokenizer: ByteVocabulary,
        prompt_tail: Sequence[int] = (),
        *,
        skip_special: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        before = self._last_bytes(prompt_tail)
        self._drops_space = tokenizer.strips_first_space and not before
        self._unfinished = before[len(before) - _unfinished_len(before) :]

    def push(self, token_id: int) -> str:
        """Take the next token; return the characters that it completes."""
        data = self._tokenizer.visible_bytes(token_id, skip_special=self._skip_special)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        data = self._unfinished + data
        cut = len(data) - _unfinished_len(data)
        self._unfinished = data[cut:]
        return data[:cut].decode("utf-8", errors="replace")

    def flush(self) -> str:
        """End the text: U+FFFD for a character that was left unfinished, else nothing."""
        unfinished, self._unfinished = self._unfinished, b""
        return unfinished.decode("utf-8", errors="replace")

    def _last_bytes(self, tokens: Sequence[int]) -> bytes:
        data = b""
        for token_id in reversed(tokens):
            data = self._tokenizer.visible_bytes(token_id, skip_special=self._skip_special) + data
            if len(data) >= _MAX_INCOMPLETE_BYTES:
                break
        return data[-_MAX_INCOMPLETE_BYTES:]


def _unfinished_len(data: bytes) -> int:
    """How many bytes at the end may still become a character with the bytes that follow.

    The standard library's incremental decoder does not serve: it waits for the end of a surrogate
    (ED A0), which no following byte can make valid.
    """
    for length in range(1, min(_MAX_INCOMPLETE_BYTES, len(data)) + 1):
        byte = data[-length]
        if byte >= 0xC0:
            return length if _is_unfinished(data[-length:]) else 0
        if byte < 0x80:
            return 0
    return 0


def _is_unfinished(character: bytes) -> bool:
    try:
        character.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False
