"""No text ever completes a bad word, and nothing else is banned, however tokens cut the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.bad_words import BadWords
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import Processors
from slipstream.sampling.state import advance
from slipstream.sampling.token_bytes import IntArray, TokenBytes
from tests.support.words import started

TEXTS = st.text("abé", min_size=1, max_size=5)
PIECES = st.one_of(
    st.text("abé ", min_size=1, max_size=6).map(str.encode),
    st.sampled_from([b"", b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"\xff", b"b\xff", b"\xffa"]),
)
VOCABULARIES = st.lists(PIECES, min_size=1, max_size=30)


def ids(found: IntArray) -> list[int]:
    assert len(set(found.tolist())) == found.size
    return sorted(found.tolist())


def banned(words: BadWords, tail: bytes) -> set[int]:
    return {*words.always.tolist(), *words.completing(tail).tolist()}


@given(tokens=VOCABULARIES, wanted=TEXTS.map(str.encode), cut=st.integers(0, 9))
def test_the_index_finds_the_tokens_that_a_look_at_each_finds(
    tokens: list[bytes], wanted: bytes, cut: int
) -> None:
    index, rest = TokenBytes(tokens), wanted[min(cut, len(wanted) - 1) :]
    assert ids(index.holding(wanted)) == [i for i, data in enumerate(tokens) if wanted in data]
    begins = [i for i, data in enumerate(tokens) if data.startswith(rest)]
    assert ids(index.beginning_with(rest)) == begins


def test_a_vocabulary_without_bytes_holds_nothing() -> None:
    index = TokenBytes([b"", b""])
    assert index.holding(b"a").size == index.beginning_with(b"a").size == 0
    assert index[1] == index[7] == b""


@settings(max_examples=400)
@given(
    tokens=VOCABULARIES,
    words=st.lists(TEXTS, min_size=1, max_size=5),
    prompt=st.lists(st.integers(0, 29), max_size=6),
    output=st.lists(st.integers(0, 29), max_size=12),
)
def test_a_token_is_banned_exactly_where_it_completes_a_word(
    tokens: list[bytes], words: list[str], prompt: list[int], output: list[int]
) -> None:
    prompt, output = [[token % len(tokens) for token in part] for part in (prompt, output)]
    bad_words = BadWords(words, TokenBytes(tokens))
    text, tail = b"".join(tokens[token] for token in prompt), bad_words.tail_of(prompt)
    for token in (*output, 0):
        completes = {
            number
            for number, data in enumerate(tokens)
            for word in map(str.encode, words)
            if (text + data).count(word, max(0, len(text) - len(word) + 1))
        }
        assert banned(bad_words, tail) == completes
        text, tail = text + tokens[token], bad_words.tail_after(tail, token)


@settings(max_examples=150)
@given(
    tokens=VOCABULARIES,
    words=st.lists(TEXTS, min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_text_of_tokens_that_may_be_drawn_has_a_bad_word(
    tokens: list[bytes], words: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    params = SamplingParams(bad_words=tuple(words))
    processors = Processors(params, len(tokens), ())
    state, text = started(params, (), TokenBytes(tokens)), b""
    row = np.zeros(len(tokens), np.float32)
    for _ in range(30):
        left = np.flatnonzero(processors.apply(row, state, np.empty_like(row)) == 0.0)
        edits = processors.edits(row, state, np.empty_like(row))
        assert set(edits.places.tolist()).isdisjoint(left.tolist())
        if not left.size:
            break
        token = int(rng.choice(left))
        state, text = advance(params, state, token), text + tokens[token]
    shown = text.decode(errors="replace")
    assert not any(word in shown for word in words)


def test_a_token_that_only_brings_a_word_further_is_free() -> None:
    words = BadWords(["Kathmandu"], TokenBytes([b"K", b"ath", b"mand", b"u", b"us", b"mandu"]))
    tail = b""
    for token, expected in ((0, set()), (1, {5}), (2, {3, 4})):
        tail = words.tail_after(tail, token)
        assert banned(words, tail) == expected
    assert words.tail_after(tail, 0) == b"K"


def test_a_token_without_text_neither_ends_a_word_nor_is_banned() -> None:
    words = BadWords(["no"], TokenBytes([b"n", b"", b"o", b"now"]))
    assert banned(words, words.tail_after(words.tail_of([0]), 1)) == {2, 3}
    assert words.tail_of([0, *[1] * 50]) == b"n"


def test_a_token_that_ends_the_output_shows_nothing_and_is_free() -> None:
    words = BadWords(["s>", "a"], TokenBytes([b"</s>", b"s", b">", b"a"]), silent_ids=(0, 2))
    assert banned(words, b"") == {3}
    assert banned(words, b"s") == {3}


def test_bans_of_many_tails_are_forgotten_and_found_again() -> None:
    vocabulary = TokenBytes([bytes([97 + i]) for i in range(26)])
    words = BadWords(["a" * 256 + "b", "ac"], vocabulary)
    for _ in range(2):
        found = [ids(words.completing(b"a" * length)) for length in range(1, 257)]
        assert found == [[2]] * 255 + [[1, 2]]
    assert ids(words.completing(b"a")) == [2]


@pytest.mark.parametrize("word", ["n", "é"])
def test_only_a_word_of_several_bytes_needs_a_state(word: str) -> None:
    assert SamplingParams(bad_words=(word,)).needs_state == (len(word.encode()) > 1)
