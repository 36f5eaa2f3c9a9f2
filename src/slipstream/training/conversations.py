"""Prompts to make answers for."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.training.overlap import ProtectedTexts, words_of

Message = Mapping[str, Any]  # Any: message values are the chat template's business


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt, perhaps of several turns.

    Attributes:
        turns: Messages that each turn adds before its answer.
    """

    prompt_id: str
    category: str
    turns: tuple[tuple[Message, ...], ...]

    def texts(self) -> Iterator[str]:
        """The messages' texts."""
        for turn in self.turns:
            for message in turn:
                if isinstance(message.get("content"), str):
                    yield message["content"]


def usable(
    conversations: Iterable[Conversation], protected: ProtectedTexts, dropped: Counter[str]
) -> list[Conversation]:
    """Those that repeat neither a protected text nor an earlier conversation.

    Args:
        dropped: Reasons are counted into it.
    """
    seen: set[tuple[tuple[str, ...], ...]] = set()
    kept = []
    for conversation in conversations:
        texts = list(conversation.texts())
        words = tuple(words_of(text) for text in texts)
        if not any(words):
            dropped["without words"] += 1
        elif words in seen:
            dropped["repeats another prompt"] += 1
        elif protected.repeats(texts):
            dropped["repeats an evaluation prompt"] += 1
        else:
            kept.append(conversation)
        seen.add(words)
    return kept


def digest_of_turns(turns: Sequence[Sequence[Message]]) -> str:
    """SHA-256 of the messages that are sent, in hex.

    The tokens of a prompt are not compared: a template may put the date into them.
    """
    return hashlib.sha256(json.dumps(turns, sort_keys=True).encode()).hexdigest()


def hash_of(text: str) -> int:
    """63 bits that depend on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
