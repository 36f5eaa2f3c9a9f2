"""Text as it grows, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.tokenization.detokenizer import IncrementalDetokenizer
from tests.unit.tokenization.vocabularies import FakeVocabulary

SMILE = "\U0001f642".encode()  # four bytes


def single_bytes(data: bytes) -> FakeVocabulary:
    return FakeVocabulary([bytes([byte]) for byte in data])


def pushes(detokenizer: IncrementalDetokenizer, tokens: Sequence[int]) -> list[str]:
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


def test_a_character_appears_when_its_last_byte_does() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(b"a" + SMILE + b"b"))

    assert pushes(detokenizer, range(6)) == ["a", "", "", "", "\U0001f642", "b", ""]


def test_an_unfinished_character_is_replaced_only_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(SMILE[:3]))

    assert pushes(detokenizer, range(3)) == ["", "", "", "\ufffd"]


def test_a_byte_that_can_never_be_valid_is_replaced_at_once() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(b"\xff\x80a"))

    assert pushes(detokenizer, range(3)) == ["\ufffd", "\ufffd", "a", ""]


def test_half_a_surrogate_is_replaced_at_once_for_nothing_can_complete_it() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(b"\xed\xa0"))

    assert pushes(detokenizer, range(2)) == ["", "\ufffd\ufffd", ""]


def test_a_broken_start_is_replaced_when_the_next_letter_shows_it() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(SMILE[:2] + b"a"))

    assert pushes(detokenizer, range(3)) == ["", "", "\ufffda", ""]


def test_special_tokens_give_no_text_and_do_not_break_characters() -> None:
    vocabulary = FakeVocabulary([SMILE[:2], b"<|end|>", SMILE[2:]], special=[1])

    assert pushes(IncrementalDetokenizer(vocabulary), range(3)) == ["", "", "\U0001f642", ""]


def test_special_tokens_give_their_text_when_asked_for() -> None:
    vocabulary = FakeVocabulary([b"a", b"<|end|>"], special=[1])
    detokenizer = IncrementalDetokenizer(vocabulary, skip_special=False)

    assert pushes(detokenizer, [0, 1]) == ["a", "<|end|>", ""]


def test_a_character_begun_in_the_prompt_is_finished_by_the_output() -> None:
    detokenizer = IncrementalDetokenizer(single_bytes(b"xyz" + SMILE), prompt_tail=[0, 1, 2, 3, 4])

    assert pushes(detokenizer, [5, 6]) == ["", "\U0001f642", ""]


def test_text_of_the_prompt_is_not_repeated() -> None:
    vocabulary = FakeVocabulary([b"prompt ", b"answer"])

    assert pushes(IncrementalDetokenizer(vocabulary, [0]), [1]) == ["answer", ""]


def test_the_first_space_is_dropped_where_the_text_starts() -> None:
    vocabulary = FakeVocabulary([b"<s>", b" a", b" b"], special=[0], strips=True)

    assert pushes(IncrementalDetokenizer(vocabulary, [0]), [1, 2]) == ["a", " b", ""]


def test_the_first_space_is_kept_after_a_prompt() -> None:
    vocabulary = FakeVocabulary([b"<s>", b" a", b" b"], special=[0], strips=True)

    assert pushes(IncrementalDetokenizer(vocabulary, [0, 1]), [2]) == [" b", ""]


def test_ten_thousand_byte_tokens_cost_one_look_up_each() -> None:
    vocabulary = single_bytes(b"\x80" + SMILE[:1])
    detokenizer = IncrementalDetokenizer(vocabulary)

    text = "".join(detokenizer.push(index % 2) for index in range(10_000)) + detokenizer.flush()

    assert text == (b"\x80" + SMILE[:1]).decode(errors="replace") * 5_000
    assert vocabulary.num_calls == 10_000
