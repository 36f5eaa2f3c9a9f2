"""What a tokenizer is made of, before it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """All that a tokenizer is made of, as read from a checkpoint.

    Attributes:
        backend: Splits text into ids; adds nothing that `prefix_ids` and `suffix_ids` hold.
        token_bytes: Bytes of each id; None where the vocabulary is only padding.
        special_ids: Control tokens: they give structure and are no text.
        eos_token_ids: Tokens that end an output, the model's main one first.
        prefix_ids, suffix_ids: Put around every text when special tokens are asked for.
        has_template: The backend itself puts special tokens around a text.
        strips_first_space: The encoding puts a space before the text, so decoding removes it.
        named_tokens: What chat templates may call by name (`bos_token`, `eos_token`, ...).
        chat_templates: Template sources by name; `default` is the usual one.
    """

    backend: Backend
    token_bytes: Sequence[bytes | None]
    special_ids: frozenset[int]
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    has_template: bool = False
    strips_first_space: bool = False
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
