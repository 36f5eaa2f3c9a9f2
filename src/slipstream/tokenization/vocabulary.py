"""Whether two models mean the same by their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.errors import VocabularyMismatchError


class Fingerprinted(Protocol):
    """A tokenizer, as far as comparing needs it."""

    def fingerprint_items(self) -> Sequence[bytes | None]:
        """Bytes of each id in order, None for padding."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id to which two vocabularies give different bytes."""

    token_id: int
    target: bytes
    draft: bytes


def first_difference(target: Fingerprinted, draft: Fingerprinted) -> Difference | None:
    """The lowest id on which both have a token, but not the same one; None if there is no such id.

    Vocabularies are padded to different sizes for the same tokenizer, so ids that only one of them
    fills do not count.
    """
    pairs = zip(target.fingerprint_items(), draft.fingerprint_items(), strict=False)
    for token_id, (target_bytes, draft_bytes) in enumerate(pairs):
        if target_bytes is None or draft_bytes is None or target_bytes == draft_bytes:
            continue
        return Difference(token_id, target_bytes, draft_bytes)
    return None


def require_same_vocabulary(target: Fingerprinted, draft: Fingerprinted) -> None:
    """Refuse a draft model whose token ids mean something else.

    Raises:
        VocabularyMismatchError: Names the first id that differs, and both meanings.
    """
    difference = first_difference(target, draft)
    if difference is not None:
        raise VocabularyMismatchError(
            f"target and drafter have different vocabularies: token {difference.token_id} is "
            f"{_shown(difference.target)} for the target and {_shown(difference.draft)} for the "
            "drafter",
            hint="use a drafter of the target's own family, or one that needs no vocabulary",
        )


def _shown(token: bytes) -> str:
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return f"the bytes {token.hex(' ')}"
