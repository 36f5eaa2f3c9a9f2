"""Text as it grows, token by token, without ever showing a part of a character."""

from __future__ import annotations

import codecs
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
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        before = self._last_bytes(prompt_tail)
        self._drops_space = tokenizer.strips_first_space and not before
        # Text of the prompt, so dropped; only an unfinished end stays in the decoder.
        self._decoder.decode(before)

    def push(self, token_id: int) -> str:
        """Take the next token; return the characters that it completes."""
        data = self._tokenizer.visible_bytes(token_id, skip_special=self._skip_special)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text: U+FFFD for a character that was left unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _last_bytes(self, tokens: Sequence[int]) -> bytes:
        data = b""
        for token_id in reversed(tokens):
            data = self._tokenizer.visible_bytes(token_id, skip_special=self._skip_special) + data
            if len(data) >= _MAX_INCOMPLETE_BYTES:
                break
        return data[-_MAX_INCOMPLETE_BYTES:]
