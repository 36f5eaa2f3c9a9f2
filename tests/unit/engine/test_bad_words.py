"""Bad words from the request to the text, over a byte-level vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slipstream.sampling.params import SamplingParams
from tests.support.engine import VOCAB_SIZE, EngineHarness, tiny_tokenizer
from tests.support.runs import saying

EOS = 2
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def cut(*pieces: str) -> tuple[int, ...]:
    """Tokens of a text that is cut at these places, whatever the tokenizer would do."""
    tokenizer = tiny_tokenizer()
    return tuple(token for piece in pieces for token in tokenizer.encode(piece))


def said(prompt: tuple[int, ...], output: tuple[int, ...], params: SamplingParams) -> str:
    harness = EngineHarness(logits_of=saying(len(prompt), output))
    return harness.generate(prompt, params).text[0]


@pytest.mark.parametrize("pieces", [("the",), ("th", "e"), ("t", "he"), ("t", "h", "e")])
def test_a_word_is_not_completed_however_it_is_cut(pieces: tuple[str, ...]) -> None:
    prompt, output = cut("say"), cut("o", *pieces, "r")
    assert said(prompt, output, PARAMS).startswith("other")
    assert "the" not in said(prompt, output, replace(PARAMS, bad_words=("the",)))


def test_a_word_that_the_prompt_begins_is_not_completed() -> None:
    params = replace(PARAMS, bad_words=("the",))
    assert not said(cut("t", "h"), cut("e"), params).startswith("e")


def test_a_control_token_inside_a_word_hides_nothing() -> None:
    output = (*cut("t", "h"), 1, *cut("e"))
    assert said(cut("say"), output, PARAMS) == "the"
    assert "the" not in said(cut("say"), output, replace(PARAMS, bad_words=("the",)))


def test_a_bias_does_not_bring_a_word_back() -> None:
    (last,) = cut("e")
    params = replace(PARAMS, bad_words=("the",), logit_bias={last: 100.0})
    assert "the" not in said(cut("say"), cut("t", "h", "x"), params)


def test_every_choice_keeps_to_the_words() -> None:
    def letters(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = torch.full((VOCAB_SIZE,), -20.0)
        logits[torch.tensor(cut("a", "b", "c"))] = 0.0
        return logits

    params = SamplingParams(max_tokens=100, bad_words=("ab", "cc", "bca"), seed=3)
    harness = EngineHarness(logits_of=letters)
    texts = harness.generate(cut("x"), params, n=4).text.values()
    assert all(word not in text for word in params.bad_words for text in texts)
    assert len(set(texts)) == 4


def test_one_request_fails_where_its_words_leave_nothing() -> None:
    params = replace(PARAMS, bad_words=("the",), allowed_token_ids=cut("e"))
    failed = EngineHarness().generate(cut("t", "h"), params).failed
    assert failed is not None
    assert "no token is left" in failed.message
