"""Which prompts repeat evaluation prompts: exactly, or in a run of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

NGRAM_LEN = 8
# Words; where a script writes none between spaces (Chinese, Japanese, Korean), characters.
_CHARACTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\W{_CHARACTERS}]+")


def words_of(text: str) -> tuple[str, ...]:
    """The words by which texts are compared: compatible characters, case folded, no punctuation."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


class ProtectedTexts:
    """Texts that must not be trained on.

    Args:
        texts: Messages of evaluation prompts.
        ngram_len: A text that shares so many consecutive words is a repetition. Shorter texts are
            compared as wholes.
    """

    def __init__(self, texts: Iterable[str], ngram_len: int = NGRAM_LEN) -> None:
        self._ngram_len = ngram_len
        self._wholes: set[tuple[str, ...]] = set()
        self._ngrams: set[tuple[str, ...]] = set()
        for text in texts:
            words = words_of(text)
            if words:
                self._wholes.add(words)
                self._ngrams.update(self._ngrams_of(words))

    def repeats(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts equals a protected one or shares a run of words with one."""
        for text in texts:
            words = words_of(text)
            if words in self._wholes or not self._ngrams.isdisjoint(self._ngrams_of(words)):
                return True
        return False

    def _ngrams_of(self, words: Sequence[str]) -> set[tuple[str, ...]]:
        length = self._ngram_len
        return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
