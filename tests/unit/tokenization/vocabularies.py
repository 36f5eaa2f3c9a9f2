"""Small vocabularies as GGUF metadata, and fakes that give bytes directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.tokenization.gguf_keys import TokenType
from slipstream.tokenization.pieces import byte_level_alphabet

Metadata = dict[str, Any]  # as read from a file: values have many types

BOS, EOS = 1, 2


class FakeVocabulary:
    """Token i has the i-th bytes; the listed ids are special. Counts how often it is asked."""

    def __init__(
        self, tokens: Sequence[bytes], *, special: Sequence[int] = (), strips: bool = False
    ) -> None:
        self.tokens = tokens
        self.special = frozenset(special)
        self.strips_first_space = strips
        self.num_calls = 0

    def visible_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        self.num_calls += 1
        is_hidden = skip_special and token_id in self.special
        return b"" if is_hidden else self.tokens[token_id]


def byte_level_metadata(pre: str | None = "gpt-2", **changes: Any) -> Metadata:
    """0 `<|endoftext|>`, 1 `<|im_start|>`, 2 `<|im_end|>`, 3 + b for byte b, `he`, `ll`, `hell`,
    ` hell`, `<think>` (user-defined), `[PAD]` (unused). `changes` replaces tokenizer.ggml.* keys.
    """
    letters = sorted(byte_level_alphabet().items(), key=lambda entry: entry[1])
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(letter for letter, _ in letters)]
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 256
    tokens += ["he", "ll", "hell", "\u0120hell", "<think>", "[PAD]"]
    types += [TokenType.NORMAL] * 4 + [TokenType.USER_DEFINED, TokenType.UNUSED]
    keys: Metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [int(kind) for kind in types],
        "merges": ["h e", "l l", "he ll", "\u0120 hell"],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    return _metadata(keys | changes)


def sentencepiece_metadata(*, add_space_prefix: bool = True, **changes: Any) -> Metadata:
    """0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 + b for byte b, a space mark, letters and some pieces."""
    pieces = ["\u2581", *"helowrd", "\u2581h", "el", "lo", "\u2581w", "hel", "\u2581hel", "rld"]
    pieces += ["\t\t", "or"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    keys: Metadata = {
        "model": "llama",
        "tokens": [*tokens, "<think>"],
        "token_type": [int(kind) for kind in types] + [int(TokenType.USER_DEFINED)],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [0.0],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": 0,
        "add_space_prefix": add_space_prefix,
    }
    return _metadata(keys | changes)


def _metadata(keys: Metadata) -> Metadata:
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}
