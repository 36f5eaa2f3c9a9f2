"""Completions, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.fake_engine import BOS, EOS, FakeEngine, text_reply
from tests.support.service import client_of, completion_body, events_of, in_loop, service_over


async def post(engine: FakeEngine, body: dict[str, Any]) -> httpx.Response:
    async with client_of(service_over(engine)) as client:
        return await client.post("/v1/completions", json=body)


@in_loop
async def test_a_completion_has_the_shape_of_the_openai_api() -> None:
    body = (await post(FakeEngine(text_reply("ab")), completion_body(seed=1))).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == 3 + 3


@in_loop
async def test_the_default_length_is_sixteen_tokens_or_what_fits() -> None:
    engine = FakeEngine(max_model_len=20)
    await post(engine, completion_body())
    await post(engine, completion_body(prompt="x" * 15))
    assert [submit.params.max_tokens for submit in engine.submitted] == [16, 4]


@in_loop
async def test_text_gets_special_tokens_and_token_ids_do_not() -> None:
    engine = FakeEngine()
    await post(engine, completion_body(prompt="A"))
    await post(engine, completion_body(prompt="A", add_special_tokens=False))
    await post(engine, completion_body(prompt=[65]))
    assert [submit.prompt for submit in engine.submitted] == [(BOS, 65), (65,), (65,)]


@in_loop
async def test_choices_of_several_prompts_follow_each_other() -> None:
    engine = FakeEngine(lambda submit, index: [*submit.prompt[1:], 48 + index, EOS])
    body = (await post(engine, completion_body(prompt=["a", "b"], n=2))).json()
    texts = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert texts == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    assert body["usage"]["prompt_tokens"] == 4
    assert len({submit.request_id for submit in engine.submitted}) == 2
    assert len({submit.params.seed for submit in engine.submitted}) == 1


@in_loop
async def test_a_stream_of_several_prompts_carries_every_choice_to_its_end() -> None:
    engine = FakeEngine(lambda submit, index: [*submit.prompt[1:], 48 + index, EOS])
    body = completion_body(prompt=["long", "b"], n=2, stream=True)
    chunks = events_of((await post(engine, body)).text)[:-1]
    texts = ["", "", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["long0", "long1", "b0", "b1"]
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2, 3]


@in_loop
async def test_logprobs_have_the_completions_format() -> None:
    body = (await post(FakeEngine(text_reply("aé")), completion_body(logprobs=1))).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "</s>"],
        "token_logprobs": [-6.5, -6.5, -1.5, -5.5],
        "top_logprobs": [
            {"b": -0.25, "a": -6.5},
            {"bytes:\\xc4": -0.25, "bytes:\\xc3": -6.5},
            {"bytes:\\xaa": -0.25, "bytes:\\xa9": -1.5},
            {"\x02": -0.25, "</s>": -5.5},
        ],
        "text_offset": [0, 1, 1, 2],
    }


@in_loop
async def test_tokens_can_be_written_as_ids() -> None:
    body = completion_body(logprobs=0, return_tokens_as_token_ids=True)
    answer = (await post(FakeEngine(text_reply("a")), body)).json()
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:97", f"token_id:{EOS}"]
    assert answer["choices"][0]["logprobs"]["top_logprobs"][0] == {"token_id:97": -6.5}


@in_loop
async def test_echo_repeats_the_prompt_before_the_output() -> None:
    body = (await post(FakeEngine(text_reply("ab")), completion_body(echo=True))).json()
    assert body["choices"][0]["text"] == "Hiab"
    assert body["usage"]["completion_tokens"] == 3


@in_loop
async def test_echo_of_token_ids_is_their_text() -> None:
    body = completion_body(prompt=[BOS, 72, 105], echo=True)
    assert (await post(FakeEngine(text_reply("!")), body)).json()["choices"][0]["text"] == "Hi!"


@in_loop
async def test_echo_with_logprobs_begins_with_the_prompts() -> None:
    engine = FakeEngine(text_reply("a"))
    logprobs = (await post(engine, completion_body(echo=True, logprobs=1))).json()["choices"][0][
        "logprobs"
    ]
    assert engine.submitted[0].params.prompt_logprobs
    assert logprobs["tokens"] == ["<s>", "H", "i", "a", "</s>"]
    assert logprobs["token_logprobs"] == [None, -2.5, -0.5, -6.5, -5.5]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_a_prompt_is_scored_without_output_when_max_tokens_is_zero(stream: bool) -> None:
    engine = FakeEngine(text_reply("abc"))
    body = completion_body(
        echo=True, logprobs=0, max_tokens=0, stream=stream, return_token_ids=True
    )
    response = await post(engine, body)
    assert engine.submitted[0].params.max_tokens == 1
    if stream:
        choices = [chunk["choices"][0] for chunk in events_of(response.text)[:-1]]
    else:
        choices = response.json()["choices"]
        assert response.json()["usage"]["completion_tokens"] == 0
    assert "".join(choice["text"] for choice in choices) == "Hi"
    assert [token for c in choices if c["logprobs"] for token in c["logprobs"]["tokens"]] == [
        "<s>", "H", "i",
    ]  # fmt: skip
    assert [i for choice in choices for i in choice.get("token_ids") or []] == []
    assert choices[-1]["finish_reason"] == "length"


@in_loop
async def test_the_streamed_answer_equals_the_whole_one() -> None:
    fields = {"echo": True, "logprobs": 2, "n": 2, "seed": 4, "prompt": ["aé", "b"]}
    whole = (await post(FakeEngine(), completion_body(**fields))).json()
    chunks = events_of((await post(FakeEngine(), completion_body(stream=True, **fields))).text)
    for choice in whole["choices"]:
        parts = [
            chunk["choices"][0]
            for chunk in chunks[:-1]
            if chunk["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for key, expected in choice["logprobs"].items():
            found = [item for part in parts if part["logprobs"] for item in part["logprobs"][key]]
            assert found == expected


@in_loop
async def test_usage_of_a_stream_comes_in_a_chunk_without_choices() -> None:
    body = completion_body(stream=True, stream_options={"include_usage": True})
    *chunks, last, _ = events_of((await post(FakeEngine(text_reply("ab")), body)).text)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)


@in_loop
async def test_prompt_logprobs_and_token_ids_stand_in_the_choice() -> None:
    body = completion_body(prompt_logprobs=0, return_token_ids=True)
    choice = (await post(FakeEngine(text_reply("a")), body)).json()["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {
        "72": {"logprob": -2.5, "rank": 1, "decoded_token": "H"}
    }
    assert choice["prompt_token_ids"] == [BOS, 72, 105]
    assert choice["token_ids"] == [97, EOS]
