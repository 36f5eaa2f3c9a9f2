"""What a vocabulary entry means in bytes, for the two ways of writing entries down.

Byte-level vocabularies (GPT-2) write every byte as one printable letter. SentencePiece vocabularies
write text as it is, a space as U+2581 and a lone byte as `<0xNN>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

SPACE_MARK = "\u2581"

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

PieceReader = Callable[[str], bytes]


def byte_level_alphabet() -> Mapping[str, int]:
    """Letter -> byte: printable bytes stand for themselves, the others for letters from U+0100.

    Source: `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def byte_level_reader() -> PieceReader:
    """A function from a byte-level piece to its bytes.

    A piece with a letter outside the alphabet stands for its own UTF-8 bytes.
    """
    alphabet = byte_level_alphabet()
    letters = frozenset(alphabet)
    table = {ord(letter): chr(byte) for letter, byte in alphabet.items()}

    def read(piece: str) -> bytes:
        if letters.issuperset(piece):
            return piece.translate(table).encode("latin-1")
        return literal_bytes(piece)

    return read


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a SentencePiece piece."""
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return literal_bytes(piece.replace(SPACE_MARK, " "))


def literal_bytes(piece: str) -> bytes:
    """The UTF-8 bytes of a piece that stands for its own text, as special tokens do."""
    return piece.encode("utf-8", errors="surrogatepass")
