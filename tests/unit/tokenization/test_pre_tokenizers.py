"""How the known rules cut text into words; expectations follow the models' own tokenizers."""

from __future__ import annotations

import pytest

from slipstream.errors import TokenizerError
from slipstream.tokenization.pre_tokenizers import pre_tokenizer_named, pre_tokenizer_names

CASES = [
    ("gpt-2", "abc 1234 I'll I'LL", ["abc", " 1234", " I", "'ll", " I", "'", "LL"]),
    ("gpt-2", "a   b\n\n c", ["a", "  ", " b", "\n\n", " c"]),
    ("smollm", "abc 1234", ["abc", " ", "1", "2", "3", "4"]),
    ("smollm", "don't  stop", ["don", "'t", " ", " stop"]),
    ("smollm", "x\u00bd\u0663", ["x", "\u00bd", "\u0663"]),
    ("starcoder", "v10", ["v", "1", "0"]),
    ("llama-bpe", "I'LL 12345", ["I", "'LL", " ", "123", "45"]),
    ("llama-bpe", "ok!\n\n\nGo", ["ok", "!\n\n\n", "Go"]),
    ("llama-bpe", "(word)", ["(word", ")"]),
    ("qwen2", "I'LL 123", ["I", "'LL", " ", "1", "2", "3"]),
    ("qwen2", "a \n  b", ["a", " \n", " ", " b"]),
    ("default", "a.b 12345", ["a", ".", "b", " ", "123", "45"]),
    ("tekken", "HelloWorld42", ["Hello", "World", "4", "2"]),
    ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
    ("deepseek-v3", "\u4f60\u597dabc12345", ["\u4f60\u597d", "abc", "123", "45"]),
    ("deepseek-coder", "ab, 12\n", ["ab", ",", " ", "1", "2", "\n"]),
]


@pytest.mark.parametrize(("name", "text", "words"), CASES)
def test_words_are_cut_as_the_model_was_trained(name: str, text: str, words: list[str]) -> None:
    cut = pre_tokenizer_named(name).splitter().pre_tokenize_str(text)

    assert [text[start:end] for _, (start, end) in cut] == words


@pytest.mark.parametrize("name", pre_tokenizer_names())
def test_every_rule_keeps_every_character(name: str) -> None:
    text = "It's 2024!\r\n\t \u00a0caf\u00e9 \u4f60\u597d \U0001f642  \n"

    cut = pre_tokenizer_named(name).splitter().pre_tokenize_str(text)

    assert "".join(text[start:end] for _, (start, end) in cut) == text


def test_an_unknown_rule_is_refused_with_its_name_and_those_that_are_known() -> None:
    with pytest.raises(TokenizerError, match=r'"martian".*supported are .*smollm') as refusal:
        pre_tokenizer_named("martian")

    assert refusal.value.hint is not None
