"""Known bugs of speculative servers: outputs that end too late, too early or with a crash.

Each test names the public report it is taken from; docs/concepts/known-bugs.md has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.errors import ContextLengthError
from slipstream.sampling.params import SamplingParams
from tests.support.draft_models import make_draft_model
from tests.support.drafters import (
    OracleDrafter,
    ScriptedDrafter,
    true_outputs_by_prompt,
)
from tests.support.engine import EngineHarness, EngineSetup, Result
from tests.support.runs import (
    COPYING,
    GREEDY,
    MODEL,
    PROMPT,
    SAMPLED,
    Ask,
    metric,
    num_accepted,
    num_drafted,
    plainly,
    saying,
    together,
    tokens_of,
)
from tests.support.tiny_llm import tiny_llm, write_tiny_model

EOS = 2
DRAFT_LENS = [1, 2, 3, 5, 8]


def with_oracle(
    output: Sequence[int],
    draft_len: int,
    **setup: Any,  # fields of EngineSetup
) -> EngineHarness:
    """A model that says `output` and then EOS, and drafts that hold all of it and more."""
    beyond = [*output, EOS, 70, 71, 72, 73, 74, 75, 76, 77]
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: beyond}))
    return EngineHarness(
        [drafter],
        logits_of=saying(len(PROMPT), output),
        setup=EngineSetup(max_draft_len=draft_len, max_draft_nodes=draft_len, **setup),
    )


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
@pytest.mark.parametrize("end", range(10))
def test_the_output_ends_exactly_at_eos_at_every_offset_of_a_block(
    end: int, draft_len: int
) -> None:
    """huggingface/transformers#47912: text went on behind an EOS inside an accepted block, because
    only the block's last token was compared."""
    output = list(range(40, 40 + end))
    result = with_oracle(output, draft_len).generate(PROMPT, GREEDY)
    assert result.token_ids[0] == [*output, EOS]
    assert result.last[0].finish_reason == "stop"


@pytest.mark.parametrize("end", range(10))
def test_nothing_is_sent_after_eos(end: int) -> None:
    """LostRuins/koboldcpp#1276: the tail of the draft behind EOS reached the client."""
    output = list(range(40, 40 + end))
    harness = with_oracle(output, 8)
    result = harness.generate(PROMPT, GREEDY)
    assert [event.finish_reason for event in result.events][:-1] == [None] * (
        len(result.events) - 1
    )
    assert result.events[-1].finish_reason == "stop"
    assert "".join(event.text for event in result.events) == harness.tokenizer.decode(output)
    assert metric(harness, "generation_tokens_total") == end + 1


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("draft_len", [2, 8])
def test_a_stop_string_over_three_tokens_is_seen_at_every_offset_of_a_sampled_block(
    offset: int, draft_len: int
) -> None:
    """microsoft/onnxruntime-genai#2528: stop strings inside a verified block were ignored, and the
    random stream was wrong after the cut."""

    def letters(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = MODEL(tokens).clone()
        logits[:68] = logits[94:] = -100.0
        return logits

    free = plainly([Ask(PROMPT, SAMPLED)], letters)["q0", 0]
    text = EngineHarness().tokenizer.decode(free)
    params = replace(SAMPLED, stop=(text[offset : offset + 3],))
    drafter = OracleDrafter(true_outputs_by_prompt({PROMPT: free}))
    setup = EngineSetup(max_draft_len=draft_len, max_draft_nodes=draft_len)
    results: list[Result] = [
        EngineHarness(drafters, logits_of=letters, setup=setup).generate(PROMPT, params)
        for drafters in ([], [drafter])
    ]
    plain, drafted = results
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    assert drafted.last[0].stop_reason == plain.last[0].stop_reason == params.stop[0]
    assert text.startswith(drafted.text[0])


def test_an_eos_that_was_only_drafted_ends_nothing() -> None:
    """openvino.genai#3293, #1951: a drafted EOS marked the sequence as finished, and its rejection
    crashed."""
    output = list(range(40, 60))
    script = {token: [EOS] for token in (PROMPT[-1], *output)}
    harness = EngineHarness([ScriptedDrafter(script)], logits_of=saying(len(PROMPT), output))
    result = harness.generate(PROMPT, GREEDY)
    assert result.token_ids[0] == [*output, EOS]
    assert num_accepted(harness) == 1


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_every_event_counts_the_tokens_it_has_told_of(draft_len: int) -> None:
    """sgl-project/sglang#37450, #39826: a counter ran over the whole block, so a part of the
    output was counted as longer than the whole."""
    harness = with_oracle(list(range(40, 80)), draft_len)
    result = harness.generate(PROMPT, replace(GREEDY, max_tokens=23))
    told = 0
    for event in result.events:
        told += len(event.token_ids)
        assert event.num_output_tokens == told
    assert told == 23


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_an_answer_may_fill_the_model_s_context_to_the_last_position(
    draft_len: int, tmp_path: Path
) -> None:
    """predibase/lorax#474: a draft reached behind the table of positions and the device failed."""
    path = write_tiny_model(tmp_path / "model", max_position_embeddings=48)
    settings = {"speculation.max_draft_len": draft_len}
    prompt = [5, 6, 7] * 8
    with tiny_llm(path, [{"kind": "ngram", "min_n": 1}], settings) as llm:
        for max_tokens in (24, 100):
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            (generation,) = llm.generate([prompt], params)
            assert len(generation.token_ids) == 24
            assert generation.choices[0].finish_reason == "length"


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_exactly_max_tokens_come_out(draft_len: int) -> None:
    """ohdearquant/lattice#242: the budget was tested between blocks only."""
    output = list(range(40, 80))
    for max_tokens in range(1, draft_len + 3):
        harness = with_oracle(output, draft_len)
        result = harness.generate(PROMPT, replace(GREEDY, max_tokens=max_tokens))
        assert result.token_ids[0] == output[:max_tokens]
        assert result.last[0].finish_reason == "length"


def test_a_prompt_one_token_short_of_the_context_gets_one_token() -> None:
    """NVIDIA/TensorRT-LLM#16826: a prompt near the limit killed the event loop."""
    harness = EngineHarness(logits_of=MODEL, setup=EngineSetup(max_model_len=len(PROMPT) + 1))
    result = harness.generate(PROMPT, SamplingParams(temperature=0.0))
    assert len(result.token_ids[0]) == 1
    assert result.last[0].finish_reason == "length"
    with pytest.raises(ContextLengthError):
        harness.submit("long", (*PROMPT, 5))
    assert len(harness.generate(PROMPT[:-5], GREEDY).token_ids[0]) == 6


@pytest.mark.parametrize("max_len", [1, 8, 30, 40])
def test_a_request_outgrows_its_draft_model_and_goes_on_without(max_len: int) -> None:
    """vllm#24662, #5342, #22935: a request longer than the draft model's context crashed."""
    params = replace(GREEDY, max_tokens=60, ignore_eos=True)
    model = make_draft_model(COPYING, max_len=max_len)
    harness = together([Ask(PROMPT, params)], [model.drafter], logits_of=COPYING)
    assert tokens_of(harness) == plainly([Ask(PROMPT, params)], COPYING)
    assert all(batch.positions.max() < max_len for batch in model.runner.batches)
    assert (num_drafted(harness) > 0) is (max_len >= 30)


def test_a_draft_cache_smaller_than_the_output_is_no_limit() -> None:
    """llama.cpp#22554: a draft context smaller than the main one crashed at its end."""
    params = replace(GREEDY, max_tokens=200, ignore_eos=True)
    model = make_draft_model(COPYING, num_pages=10, page_size=4, max_len=40)
    harness = together([Ask(PROMPT, params)], [model.drafter], logits_of=COPYING)
    assert tokens_of(harness) == plainly([Ask(PROMPT, params)], COPYING)


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_a_draft_is_cut_to_the_slots_that_are_left(draft_len: int) -> None:
    """turboderp/exllamav2#274: lookahead was not bounded by the size of the cache."""
    output = list(range(40, 60))
    harness = with_oracle(output, draft_len, num_pages=10, page_size=4, max_model_len=40, high_at=1)
    result = harness.generate(PROMPT, replace(GREEDY, max_tokens=100))
    assert result.token_ids[0] == output
    assert metric(harness, "preemptions_total") == 0
    assert max(batch.positions.max() for batch in harness.target.batches) <= 38
