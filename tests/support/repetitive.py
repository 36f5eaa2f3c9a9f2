"""Prompts whose answers drafters can guess, and what a client sees of them."""

from __future__ import annotations

from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams

DRAFT_MODEL = {"kind": "draft_model", "source": "target"}
PROMPTS = [
    "the cat sat on the mat and the cat sat on the",
    "the cat sat on the mat and the dog ran",
    "one two three one two three one two",
    "the cat sat on the mat and the cat",
]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=True),
    SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True, logprobs=True),
]


def answers(llm: LLM, params: SamplingParams) -> list[object]:
    """What a client sees of each prompt."""
    return [
        (generation.token_ids, generation.choices[0].logprobs)
        for generation in llm.generate(PROMPTS, params)
    ]
