"""Where an output ends, at every offset of a verified block."""

from __future__ import annotations

import pytest

from slipstream.sampling.params import SamplingParams
from tests.support.drafters import OracleDrafter, true_outputs
from tests.support.engine import VOCAB_SIZE, EngineHarness, EngineSetup
from tests.support.scripted_target import LogitsOf, hashed_logits

PROMPT = tuple(range(40, 60))
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
LEN = 20


def texts_of_letters() -> LogitsOf:
    """Greedy continuation made of letters, so that stop strings can be named."""
    hashed = hashed_logits(VOCAB_SIZE)

    def logits_of(tokens: tuple[int, ...]):  # type: ignore[no-untyped-def]  # as LogitsOf
        logits = hashed(tokens)
        logits[:68] -= 100.0
        logits[94:] -= 100.0
        return logits

    return logits_of


def plain_tokens(params: SamplingParams = GREEDY) -> list[int]:
    result = EngineHarness(logits_of=texts_of_letters()).generate(PROMPT, params)
    return result.token_ids[0]


def drafting_harness(draft_len: int = 8) -> EngineHarness:
    drafter = OracleDrafter(true_outputs({"r0#0": plain_tokens()}))
    return EngineHarness(
        [drafter],
        logits_of=texts_of_letters(),
        setup=EngineSetup(max_draft_len=draft_len, max_draft_nodes=draft_len),
    )


def test_the_oracle_is_accepted_in_whole_blocks() -> None:
    result = drafting_harness().generate(PROMPT, GREEDY)
    assert result.token_ids[0] == plain_tokens()
    stats = result.last[0].speculation
    assert stats is not None
    assert stats.mean_acceptance_length > 4.0


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_exactly_max_tokens_come_out(max_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    result = drafting_harness().generate(PROMPT, params)
    assert result.token_ids[0] == plain_tokens()[:max_tokens]
    assert result.last[0].finish_reason == "length"


@pytest.mark.parametrize("offset", range(14))
def test_a_stop_token_ends_the_output_at_any_offset_of_a_block(offset: int) -> None:
    tokens = plain_tokens()
    offset = tokens.index(tokens[offset])
    params = SamplingParams(temperature=0.0, max_tokens=LEN, stop_token_ids=(tokens[offset],))
    result = drafting_harness().generate(PROMPT, params)
    assert result.token_ids[0] == tokens[: offset + 1]
    assert result.last[0].finish_reason == "stop"
    assert result.last[0].stop_reason == tokens[offset]
    assert result.text[0] == drafting_harness().tokenizer.decode(tokens[:offset])


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_over_three_tokens_ends_at_any_offset(
    offset: int, include_stop: bool
) -> None:
    harness = drafting_harness()
    tokens = plain_tokens()
    text = harness.tokenizer.decode(tokens)
    stop = text[offset : offset + 3]
    end = text.index(stop) + 3
    params = SamplingParams(
        temperature=0.0, max_tokens=LEN, stop=(stop,), include_stop=include_stop
    )
    result = harness.generate(PROMPT, params)
    assert result.text[0] == text[: end if include_stop else end - 3]
    assert result.token_ids[0] == tokens[:end]
    assert result.last[0].stop_reason == stop


@pytest.mark.parametrize("offset", range(12))
def test_nothing_after_the_stop_is_counted_or_cached(offset: int) -> None:
    tokens = plain_tokens()
    harness = drafting_harness()
    params = SamplingParams(temperature=0.0, max_tokens=LEN, stop_token_ids=(tokens[offset],))
    result = harness.generate(PROMPT, params)
    num_output = len(result.token_ids[0])
    stats = result.last[0].speculation
    assert stats is not None
    assert stats.num_accepted_tokens <= num_output
    assert sum(len(event.token_ids) for event in result.events) == num_output
    assert harness.kv.usage().num_cached * 4 <= len(PROMPT) + num_output


@pytest.mark.parametrize("draft_len", [1, 2, 5, 8])
def test_prompt_and_output_fill_the_context_exactly(draft_len: int) -> None:
    setup = EngineSetup(
        max_model_len=30, num_pages=8, max_draft_len=draft_len, max_draft_nodes=draft_len
    )
    drafter = OracleDrafter(true_outputs({"r0#0": plain_tokens()}))
    harness = EngineHarness([drafter], logits_of=texts_of_letters(), setup=setup)
    result = harness.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1000))
    assert len(result.token_ids[0]) == 10
    assert result.last[0].finish_reason == "length"


def test_stop_strings_wait_for_min_tokens() -> None:
    harness = drafting_harness()
    tokens = plain_tokens()
    text = harness.tokenizer.decode(tokens)
    params = SamplingParams(temperature=0.0, max_tokens=LEN, stop=(text[0],), min_tokens=6)
    result = harness.generate(PROMPT, params)
    assert len(result.token_ids[0]) >= 6
