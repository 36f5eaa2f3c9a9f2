"""The engine in this process, as scripts use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipstream.engine.llm import LLM
from slipstream.engine.messages import Tokens
from slipstream.errors import ConfigError, ContextLengthError, InvalidRequestError
from slipstream.sampling.params import SamplingParams
from tests.support.tiny_llm import tiny_llm, write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    num_threads = torch.get_num_threads()
    with tiny_llm(path, ["ngram"], {"scheduler.max_queue_len": 3}) as llm:
        yield llm
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def _nothing_is_left(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.engine.has_work
    llm.engine.check_integrity()
    assert llm.engine.kv.usage().num_leased == 0


def test_a_text_and_its_tokens_give_the_same_answer(llm: LLM) -> None:
    from_text = llm.generate("hello", GREEDY)[0]
    from_tokens = llm.generate(llm.tokenizer.encode("hello"), GREEDY)[0]
    assert from_text.token_ids == from_tokens.token_ids
    assert from_text.text == llm.tokenizer.decode(from_text.token_ids)
    assert from_text.prompt_token_ids == tuple(llm.tokenizer.encode("hello"))


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [[10], [11, 12, 13, 14], [15, 16]]
    together = [item.token_ids for item in llm.generate(prompts, GREEDY)]
    assert together == [llm.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_more_prompts_than_the_queue_holds_are_all_answered(llm: LLM) -> None:
    prompts = [[20 + number] for number in range(40)]
    assert all(len(item.token_ids) == 8 for item in llm.generate(prompts, GREEDY))


def test_more_choices_than_the_queue_holds_are_refused_and_do_not_hang(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"n is 4, and the queue .* holds 3"):
        llm.generate([[5, 6]], GREEDY, n=4)


def test_a_request_that_cannot_run_cancels_the_others(llm: LLM) -> None:
    with pytest.raises(ContextLengthError):
        llm.generate([[5, 6], [7] * 5000], GREEDY)


def test_a_stream_gives_the_answer_in_pieces(llm: LLM) -> None:
    events = list(llm.stream([5, 6, 7], GREEDY))
    tokens = [token for event in events for token in event.token_ids]
    assert tokens == llm.generate([[5, 6, 7]], GREEDY)[0].token_ids
    assert [event.finish_reason for event in events][-1] == "length"


def test_closing_a_stream_cancels_its_request(llm: LLM) -> None:
    stream = llm.stream([5, 6, 7], SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    assert llm.engine.has_work
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert not llm.engine.has_work


def test_streams_can_be_read_side_by_side(llm: LLM) -> None:
    expected = [item.token_ids for item in llm.generate([[5, 6], [7, 8]], GREEDY)]
    streams = [llm.stream([5, 6], GREEDY), llm.stream([7, 8], GREEDY)]
    pieces: list[list[Tokens]] = [[next(stream)] for stream in streams]
    beside = llm.generate([[9, 10]], GREEDY)[0].token_ids
    for stream, events in zip(streams, pieces, strict=True):
        events += list(stream)
    assert [[t for event in events for t in event.token_ids] for events in pieces] == expected
    assert beside == llm.generate([[9, 10]], GREEDY)[0].token_ids


def test_choices_come_in_order_with_their_own_counters(llm: LLM) -> None:
    (item,) = llm.generate([[5, 6, 7]], SamplingParams(seed=3, max_tokens=6), n=3)
    assert len(item.choices) == 3
    assert item.token_ids == item.choices[0].token_ids
    for choice in item.choices:
        assert choice.finish_reason in ("stop", "length")
        assert choice.speculation.num_steps > 0


def test_a_conversation_is_rendered_by_the_model_s_template(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert list(answer.prompt_token_ids) == llm.tokenizer.encode(text, add_special=False)


def test_nothing_times_out_where_nobody_else_waits(path: Path) -> None:
    limits = {"scheduler.queue_timeout_s": 1e-6, "scheduler.request_timeout_s": 1e-6}
    with tiny_llm(path, settings=limits | {"scheduler.max_num_requests": 1}) as llm:
        assert len(llm.generate([[5], [6]], GREEDY)) == 2


def test_a_setting_that_does_not_exist_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="max_draft_len"):
        tiny_llm(path, settings={"speculation.max_draft_length": 3})
