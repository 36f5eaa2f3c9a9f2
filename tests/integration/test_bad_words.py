"""Bad words with the default model, whose vocabulary cuts them in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from tests.support.models import default_model_path

pytestmark = pytest.mark.model

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, seed=2)
DRAFTERS = [
    {"kind": "suffix", "tree": True},
    {"kind": "draft_model", "source": "target", "num_children": 2, "max_draft_len": 3},
]


def default_llm(drafters: list[dict[str, Any]]) -> LLM:
    settings = {
        "model.max_model_len": 256,
        "memory.kv_bytes": 2**27,
        "engine.num_threads": 1,
        "speculation.controller": "fixed",
        "speculation.drafters": drafters,
    }
    return LLM(str(default_model_path()), settings=settings)


@pytest.fixture(scope="module")
def llms() -> Iterator[tuple[LLM, LLM]]:
    """The default model without and with drafts."""
    with default_llm([]) as plain, default_llm(DRAFTERS) as drafting:
        yield plain, drafting


def text_of(llm: LLM, prompt: str, params: SamplingParams) -> str:
    (generation,) = llm.generate([prompt], params)
    return generation.choices[0].text


def test_words_of_several_tokens_are_not_completed(llms: tuple[LLM, LLM]) -> None:
    kathmandu = "Kathmandu, Kathmandu, Kathmandu, Kathmandu, Kathmandu, Kathmandu,"
    story = "Some people stayed here and the others went there. Some people"
    for prompt, word in ((kathmandu, "Kathmandu"), (story, "the")):
        assert word in text_of(llms[0], prompt, PARAMS)
        banning = replace(PARAMS, bad_words=(word,))
        assert all(word not in text_of(llm, prompt, banning) for llm in llms)


def test_a_bias_towards_a_word_s_beginning_does_not_bring_it_about(llms: tuple[LLM, LLM]) -> None:
    plain = llms[0]
    (beginning,) = plain.tokenizer.encode(" Par", add_special=False)
    params = replace(PARAMS, logit_bias={beginning: 100.0}, max_tokens=2, bad_words=("Paris",))
    text = text_of(plain, "The capital of France is", params)
    assert text.startswith(" Par")
    assert "Paris" not in text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token(llms: tuple[LLM, LLM], temperature: float) -> None:
    params = replace(PARAMS, temperature=temperature, bad_words=("the", "and", ", "))
    prompts = ["Once upon a time there was", "one two three one two three one two"]
    plain, drafted = (llm.generate(prompts, params) for llm in llms)
    choices = [[item.choices[0] for item in generations] for generations in (plain, drafted)]
    assert [item.token_ids for item in choices[0]] == [item.token_ids for item in choices[1]]
    for item, word in product(choices[0], params.bad_words):
        assert word not in item.text
    assert sum(item.speculation.num_accepted_tokens for item in choices[1]) > 0
