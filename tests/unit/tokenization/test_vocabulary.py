"""Comparing the vocabularies of target and draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from slipstream.errors import VocabularyMismatchError
from slipstream.tokenization.vocabulary import (
    Difference,
    first_difference,
    require_same_vocabulary,
)


@dataclass(frozen=True, slots=True)
class Items:
    """Only what comparing needs."""

    items: Sequence[bytes | None]

    def fingerprint_items(self) -> Sequence[bytes | None]:
        return self.items


def test_equal_vocabularies_do_not_differ() -> None:
    assert first_difference(Items([b"a", b"b"]), Items([b"a", b"b"])) is None


def test_the_first_token_that_differs_is_reported() -> None:
    target, draft = Items([b"a", b"b", b"c"]), Items([b"a", b"x", b"y"])

    assert first_difference(target, draft) == Difference(1, b"b", b"x")


def test_padding_to_another_size_does_not_count() -> None:
    target, draft = Items([b"a", b"b", None, None]), Items([b"a", b"b"])

    assert first_difference(target, draft) is None
    assert first_difference(draft, target) is None


def test_padding_inside_the_shared_range_does_not_count() -> None:
    assert first_difference(Items([b"a", None, b"c"]), Items([b"a", b"tool", b"c"])) is None


def test_a_mismatch_is_refused_with_both_meanings() -> None:
    with pytest.raises(VocabularyMismatchError, match=r"token 1 is 'b' .* the bytes e4 bd"):
        require_same_vocabulary(Items([b"a", b"b"]), Items([b"a", b"\xe4\xbd"]))


def test_equal_vocabularies_are_accepted() -> None:
    require_same_vocabulary(Items([b"a"]), Items([b"a", None]))
