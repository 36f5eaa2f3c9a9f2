"""Laws of text: nothing is lost, added or shown half, however the tokens cut it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipstream.tokenization.detokenizer import IncrementalDetokenizer
from slipstream.tokenization.gguf_tokenizer import tokenizer_from_gguf
from slipstream.tokenization.tokenizer import Tokenizer
from tests.support.paths import shared_dir
from tests.unit.tokenization.vocabularies import (
    FakeVocabulary,
    byte_level_metadata,
    sentencepiece_metadata,
)

KINDS = ("smollm", "llama-bpe", "sentencepiece")
ADDED_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "<unk>", "<s>", "</s>")

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))
# Mostly bytes of multi-byte characters, so that sequences are nearly valid.
HOSTILE = st.binary() | st.lists(
    st.sampled_from([b"a", b"\x80", b"\xbf", b"\xc3", b"\xe4", b"\xed\xa0", b"\xf0\x9f", b"\xff"])
).map(b"".join)


@cache
def tokenizer(kind: str) -> Tokenizer:
    is_sentencepiece = kind == "sentencepiece"
    metadata = sentencepiece_metadata() if is_sentencepiece else byte_level_metadata(kind)
    return Tokenizer(tokenizer_from_gguf(metadata))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """`data` in pieces; empty ones too, as tokens without text are."""
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(bounds)] + [b""]


def stream(detokenizer: IncrementalDetokenizer, tokens: Sequence[int]) -> list[str]:
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


@settings(deadline=None, max_examples=100)
@given(text=TEXTS, kind=st.sampled_from(KINDS))
def test_decoding_an_encoding_gives_the_text_back(text: str, kind: str) -> None:
    # Written-out added tokens are structure, not text.
    assume(not any(token in text for token in ADDED_TOKENS))

    ids = tokenizer(kind).encode(text)

    assert tokenizer(kind).decode(ids) == text
    assert "".join(stream(IncrementalDetokenizer(tokenizer(kind)), ids)) == text


@settings(deadline=None, max_examples=50)
@given(
    parts=st.lists(TEXTS | st.sampled_from(ADDED_TOKENS)), kind=st.sampled_from(["smollm", "gpt-2"])
)
def test_a_byte_level_encoding_keeps_written_special_tokens_too(
    parts: list[str], kind: str
) -> None:
    text = "".join(parts)
    ids = tokenizer(kind).encode(text)

    assert tokenizer(kind).decode(ids, skip_special=False) == text


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"])), places=st.lists(st.integers(0)))
def test_any_cutting_of_a_text_gives_it_back_in_whole_characters(
    text: str, places: list[int]
) -> None:
    pieces = cut(text.encode(), places)
    shown = stream(IncrementalDetokenizer(FakeVocabulary(pieces)), range(len(pieces)))

    whole_characters = [
        b"".join(pieces[:count]).decode(errors="ignore") for count in range(1, len(pieces) + 1)
    ]
    assert list(itertools.accumulate(shown)) == [*whole_characters, text]


@settings(deadline=None, max_examples=300)
@given(data=HOSTILE, places=st.lists(st.integers(0)))
def test_any_cutting_of_any_bytes_is_replaced_as_in_one_go(data: bytes, places: list[int]) -> None:
    pieces = cut(data, places)
    shown = stream(IncrementalDetokenizer(FakeVocabulary(pieces)), range(len(pieces)))

    assert "".join(shown) == data.decode(errors="replace")


@settings(deadline=None, max_examples=200)
@given(prompt=HOSTILE, output=HOSTILE, places=st.lists(st.integers(0)))
def test_an_output_is_the_continuation_of_its_prompt(
    prompt: bytes, output: bytes, places: list[int]
) -> None:
    before, after = cut(prompt, places), cut(output, places)
    vocabulary = FakeVocabulary(before + after)
    detokenizer = IncrementalDetokenizer(vocabulary, range(len(before)))

    shown = stream(detokenizer, range(len(before), len(before) + len(after)))

    continued = _unfinished_end(prompt) + output
    assert "".join(shown) == continued.decode(errors="replace")


def _unfinished_end(data: bytes) -> bytes:
    """The bytes at the end that some further bytes would make a character."""
    continuations = [b"\x80", b"\x90", b"\xa0", b"\xbf"]
    tails = [
        b"".join(tail)
        for count in (1, 2, 3)
        for tail in itertools.product(continuations, repeat=count)
    ]
    ends = (data[-length:] for length in range(min(3, len(data)), 0, -1))
    return next((end for end in ends if any(_is_character(end + tail) for tail in tails)), b"")


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_real_prompts_survive_encoding_and_decoding(kind: str) -> None:
    for path in sorted(shared_dir("data", "open").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines()[:12]:
            for message in json.loads(line).get("messages", []):
                text = str(message.get("content"))
                assert tokenizer(kind).decode(tokenizer(kind).encode(text)) == text
