"""The tokens' bytes as the sampler searches them, made when a request first needs them."""

from __future__ import annotations

from slipstream.sampling.bad_words import BadWords
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.token_bytes import TokenBytes
from slipstream.tokenization.tokenizer import Tokenizer


class EngineVocabulary:
    """What bad words are looked for in.

    Args:
        tokenizer: Of the target.
        vocab_size: Ids that may be drawn are below it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._token_bytes: TokenBytes | None = None

    def bad_words(self, params: SamplingParams) -> BadWords | None:
        """The words of a request, prepared; None where it has none."""
        if not params.bad_words:
            return None
        if self._token_bytes is None:
            visible = self._tokenizer.visible_bytes
            self._token_bytes = TokenBytes([visible(token) for token in range(self._vocab_size)])
        ends = () if params.ignore_eos else self._tokenizer.eos_token_ids
        return BadWords(params.bad_words, self._token_bytes, silent_ids=ends)
