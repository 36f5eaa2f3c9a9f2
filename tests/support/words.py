"""Bad words over vocabularies whose tokens are one character each, or any given bytes.

With one character a token, a text and its tokens are the same thing, so that a word of chosen
tokens can be written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from slipstream.sampling.bad_words import BadWords
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState, initial_state
from slipstream.sampling.token_bytes import TokenBytes

_FIRST_CHARACTER = 0x4E00  # from here on, three bytes each
_NUM_CHARACTERS = 20_100


def text_of(*tokens: int) -> str:
    """The text of these tokens."""
    return "".join(chr(_FIRST_CHARACTER + token) for token in tokens)


@cache
def characters() -> TokenBytes:
    """The vocabulary that `text_of` writes in."""
    return TokenBytes([text_of(token).encode() for token in range(_NUM_CHARACTERS)])


def started(
    params: SamplingParams, prompt: Sequence[int], token_bytes: TokenBytes | None = None
) -> SamplingState:
    """As `initial_state`, over tokens of one character or the given ones."""
    words = BadWords(params.bad_words, token_bytes or characters()) if params.bad_words else None
    return initial_state(params, prompt, words)
