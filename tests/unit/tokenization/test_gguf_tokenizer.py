"""Tokenizers built from GGUF metadata."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.errors import TokenizerError
from slipstream.tokenization.gguf_keys import TokenType
from slipstream.tokenization.gguf_tokenizer import tokenizer_from_gguf
from slipstream.tokenization.tokenizer import Tokenizer
from tests.unit.tokenization.vocabularies import (
    BOS,
    EOS,
    byte_level_metadata,
    sentencepiece_metadata,
)

DIVERSE = [
    "hello hell shell",
    "don't, DON'T 12345",
    "  spaces \t\n\n  more  ",
    "\u4f60\u597d\uff0c\u4e16\u754c \ud55c\uad6d\uc5b4",
    "\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a\u0301 \ufffd \x00 \x7f",
    "",
]


def byte_level(pre: str | None = "smollm", **changes: Any) -> Tokenizer:
    return Tokenizer(tokenizer_from_gguf(byte_level_metadata(pre, **changes)))


def sentencepiece(*, add_space_prefix: bool = True, **changes: Any) -> Tokenizer:
    metadata = sentencepiece_metadata(add_space_prefix=add_space_prefix, **changes)
    return Tokenizer(tokenizer_from_gguf(metadata))


def pieces(tokenizer: Tokenizer, text: str, *, add_special: bool = False) -> list[bytes]:
    return [tokenizer.token_bytes(i) for i in tokenizer.encode(text, add_special=add_special)]


class TestByteLevel:
    def test_merges_apply_inside_words_only(self) -> None:
        assert pieces(byte_level(), "hell hello") == [b"hell", b" hell", b"o"]

    def test_digits_stand_alone_where_the_rule_says_so(self) -> None:
        tokenizer = byte_level(merges=["1 2"], tokens=[*_tokens(), "12"], token_type=None)

        assert pieces(tokenizer, "12") == [b"1", b"2"]

    @pytest.mark.parametrize("text", DIVERSE)
    def test_any_text_survives_encoding_and_decoding(self, text: str) -> None:
        tokenizer = byte_level()

        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_control_token_in_the_text_is_one_id(self) -> None:
        ids = byte_level().encode("<|im_start|>he<|im_end|>")

        assert (ids[0], ids[-1]) == (BOS, EOS)
        assert len(ids) == 3

    def test_a_user_defined_token_is_one_id_and_visible_text(self) -> None:
        tokenizer = byte_level()
        ids = tokenizer.encode("a<think>b")

        assert len(ids) == 3
        assert tokenizer.decode(ids) == "a<think>b"

    def test_control_tokens_are_hidden_unless_asked_for(self) -> None:
        tokenizer = byte_level()
        ids = tokenizer.encode("<|im_start|>hell")

        assert tokenizer.decode(ids) == "hell"
        assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hell"

    def test_every_end_of_turn_ends_an_output_the_named_one_first(self) -> None:
        assert byte_level().eos_token_ids == (EOS, 0)

    def test_the_begin_token_is_added_where_the_file_says_so(self) -> None:
        assert byte_level(add_bos_token=True).encode("he")[0] == BOS
        assert byte_level(add_bos_token=True).encode("he", add_special=False)[0] != BOS

    def test_the_begin_token_is_added_where_the_family_always_does(self) -> None:
        assert byte_level("llama-bpe").encode("he")[0] == BOS
        assert byte_level("smollm").encode("he")[0] != BOS

    def test_the_end_token_is_added_where_the_file_says_so(self) -> None:
        assert byte_level(add_eos_token=True).encode("he")[-1] == EOS

    def test_a_whole_word_token_needs_no_merges_where_the_rule_says_so(self) -> None:
        changes = {"tokens": [*_tokens(), "whole"], "token_type": None}

        assert pieces(byte_level("llama-bpe", add_bos_token=False, **changes), "whole") == [
            b"whole"
        ]
        assert len(pieces(byte_level("gpt-2", **changes), "whole")) == 5

    def test_unused_ids_are_padding(self) -> None:
        tokenizer = byte_level()
        padding = byte_level_metadata()["tokenizer.ggml.tokens"].index("[PAD]")

        assert tokenizer.token_bytes(padding) == b""
        assert tokenizer.fingerprint_items()[padding] is None
        assert padding not in tokenizer.encode("[PAD]")

    def test_a_missing_rule_means_the_default_one(self) -> None:
        assert pieces(byte_level(None), "1234") == pieces(byte_level("default"), "1234")

    def test_composed_and_decomposed_letters_are_one_for_qwen(self) -> None:
        assert byte_level("qwen2").encode("e\u0301") == byte_level("qwen2").encode("\u00e9")

    def test_templates_and_token_names_come_along(self) -> None:
        metadata = byte_level_metadata()
        metadata |= {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
        tokenizer = Tokenizer(tokenizer_from_gguf(metadata))

        assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}
        assert tokenizer.named_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


class TestSentencePiece:
    def test_the_best_scored_piece_is_joined_first(self) -> None:
        # `el` outranks `hel`, and with a higher score `lo` would win its letter.
        assert pieces(sentencepiece(), "hello") == [b" hel", b"lo"]

    def test_the_order_of_merging_follows_the_scores(self) -> None:
        scores = list(sentencepiece_metadata()["tokenizer.ggml.scores"])
        tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
        scores[tokens.index("lo")] = 1.0
        scores[tokens.index("el")] = -99.0

        # `ell` is no piece, so with `lo` first the middle l stays alone.
        assert pieces(sentencepiece(scores=scores), "helo") == [b" h", b"e", b"lo"]

    @pytest.mark.parametrize("text", DIVERSE)
    @pytest.mark.parametrize("add_space_prefix", [True, False])
    def test_any_text_survives_encoding_and_decoding(
        self, text: str, add_space_prefix: bool
    ) -> None:
        tokenizer = sentencepiece(add_space_prefix=add_space_prefix)

        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_letters_outside_the_vocabulary_fall_back_to_bytes(self) -> None:
        tokenizer = sentencepiece(add_space_prefix=False)

        assert pieces(tokenizer, "\u4f60") == [b"\xe4", b"\xbd", b"\xa0"]

    def test_a_letter_that_is_only_a_byte_still_joins_to_longer_pieces(self) -> None:
        tokenizer = sentencepiece(add_space_prefix=False)

        assert pieces(tokenizer, "\t\t") == [b"\t\t"]
        assert pieces(tokenizer, "\t") == [b"\t"]

    def test_the_space_before_the_text_is_added_only_where_the_file_says_so(self) -> None:
        assert pieces(sentencepiece(), "w") == [b" w"]
        assert pieces(sentencepiece(add_space_prefix=False), "w") == [b"w"]

    def test_the_begin_token_is_added_unless_the_file_says_no(self) -> None:
        assert sentencepiece().encode("w")[0] == BOS
        assert sentencepiece(add_bos_token=False).encode("w")[0] != BOS

    def test_user_defined_tokens_are_single_ids(self) -> None:
        assert b"<think>" in pieces(sentencepiece(), "he<think>lo")


class TestBrokenFiles:
    def test_an_unknown_kind_of_vocabulary_is_refused_with_its_name(self) -> None:
        with pytest.raises(TokenizerError, match=r'"bert".*supported are "gpt2"'):
            byte_level(model="bert")

    def test_missing_tokens_are_named(self) -> None:
        with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.tokens .*missing"):
            byte_level(tokens=None)

    def test_too_few_token_types_are_refused(self) -> None:
        with pytest.raises(TokenizerError, match=r"token_type must be a list of 265 numbers"):
            byte_level(token_type=[1, 1])

    def test_missing_scores_are_named(self) -> None:
        with pytest.raises(TokenizerError, match=r"scores .*missing"):
            sentencepiece(scores=None)

    def test_an_end_token_outside_the_vocabulary_is_refused(self) -> None:
        with pytest.raises(TokenizerError, match=r"eos_token_id must be an id below 265; got 9999"):
            byte_level(eos_token_id=9999)

    def test_a_merge_of_unknown_pieces_is_refused(self) -> None:
        with pytest.raises(TokenizerError, match="merges do not fit"):
            byte_level(merges=["zz yy"])

    def test_a_flag_that_is_no_flag_is_refused(self) -> None:
        with pytest.raises(TokenizerError, match="add_bos_token must be true or false; got yes"):
            byte_level(add_bos_token="yes")


def _tokens() -> list[str]:
    tokens: list[str] = byte_level_metadata()["tokenizer.ggml.tokens"]
    return tokens


def test_token_types_have_the_values_of_the_format() -> None:
    gguf = pytest.importorskip("gguf")

    assert {kind.name: kind.value for kind in TokenType} == {
        kind.name: kind.value for kind in gguf.TokenType
    }
