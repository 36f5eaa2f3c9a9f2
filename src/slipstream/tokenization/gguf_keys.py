"""Typed access to the `tokenizer.*` keys of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from slipstream.errors import TokenizerError
from slipstream.tokenization.pieces import PieceReader, literal_bytes

Metadata = Mapping[str, Any]  # values have any of 13 types; each is checked when it is read

_PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = frozenset((TokenType.UNKNOWN, TokenType.CONTROL))
ADDED_TYPES = SPECIAL_TYPES | {TokenType.USER_DEFINED}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Pieces and their types, one of each per id."""

    pieces: Sequence[str]
    types: Sequence[int]

    def of_types(self, *types: int) -> dict[str, int]:
        """Piece -> id; of equal pieces the last id counts, as in llama.cpp."""
        return {
            piece: token_id
            for token_id, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True))
            if kind in types
        }

    def token_bytes(self, read: PieceReader) -> list[bytes | None]:
        """Bytes of each id: added tokens are their own text, unused ids (padding) have none."""
        readers: dict[int, PieceReader] = dict.fromkeys(ADDED_TYPES, literal_bytes)
        return [
            None if kind == TokenType.UNUSED else readers.get(kind, read)(piece)
            for piece, kind in zip(self.pieces, self.types, strict=True)
        ]

    def special_ids(self) -> frozenset[int]:
        """Ids that give structure and no text."""
        return frozenset(
            token_id for token_id, kind in enumerate(self.types) if kind in SPECIAL_TYPES
        )


class GgufKeys:
    """Reads single keys and says what is wrong with a key that is not as it should be."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def has(self, name: str) -> bool:
        return _PREFIX + name in self._metadata

    def text(self, name: str) -> str:
        value = self._metadata.get(_PREFIX + name)
        if not isinstance(value, str):
            raise _wrong(name, "a text", value)
        return value

    def texts(self, name: str) -> list[str]:
        value = self._metadata.get(_PREFIX + name)
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise _wrong(name, "a list of texts", value)
        return value

    def numbers(self, name: str, length: int) -> list[Any]:
        """A list of `length` numbers, one per token."""
        value = self._metadata.get(_PREFIX + name)
        if not isinstance(value, list) or len(value) != length or isinstance(value[0], str):
            raise _wrong(name, f"a list of {length} numbers, one per token", value)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + name, default)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
        return value

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """The id under `name`_token_id, None if the file names none."""
        value = self._metadata.get(f"{_PREFIX}{name}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < vocab_size:
            raise _wrong(f"{name}_token_id", f"an id below {vocab_size}", value)
        return value

    def vocabulary(self) -> GgufVocabulary:
        pieces = self.texts("tokens")
        if not self.has("token_type"):
            return GgufVocabulary(pieces, [TokenType.NORMAL] * len(pieces))
        return GgufVocabulary(pieces, self.numbers("token_type", len(pieces)))

    def chat_templates(self) -> dict[str, str]:
        """Template sources by name; the nameless one is `default`."""
        key = "tokenizer.chat_template"
        templates = {
            name.removeprefix(f"{key}."): source
            for name, source in self._metadata.items()
            if name.startswith(f"{key}.") and isinstance(source, str)
        }
        usual = self._metadata.get(key)
        return templates | ({"default": usual} if isinstance(usual, str) else {})


def _wrong(name: str, wanted: str, value: object) -> TokenizerError:
    given = "it is missing" if value is None else f"got {str(value)[:40]}"
    if isinstance(value, list):
        given = f"got a list of {len(value)}"
    return TokenizerError(
        f"the GGUF key {_PREFIX}{name} must be {wanted}; {given}",
        hint="convert the model again, or use its safetensors checkpoint",
    )
