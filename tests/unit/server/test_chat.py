"""Chat answers, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from slipstream.engine.messages import Submit
from tests.support.fake_engine import EOS, FakeEngine, text_reply
from tests.support.service import MODEL, chat_body, client_of, events_of, in_loop, service_over


async def post(engine: FakeEngine, body: dict[str, Any]) -> httpx.Response:
    async with client_of(service_over(engine)) as client:
        return await client.post("/v1/chat/completions", json=body)


async def submitted(body: dict[str, Any]) -> Submit:
    engine = FakeEngine()
    response = await post(engine, body)
    assert response.status_code == 200, response.text
    return engine.submitted[0]


@in_loop
async def test_an_answer_has_the_shape_of_the_openai_api() -> None:
    body = (await post(FakeEngine(text_reply("Hello!")), chat_body(seed=5))).json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 19,
        "completion_tokens": 7,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert body["system_fingerprint"] == "fp_fake"
    assert body["seed"] == 5


@in_loop
async def test_the_template_makes_the_prompt_and_adds_no_second_bos() -> None:
    submit = await submitted(chat_body(chat_template_kwargs={"enable_thinking": False}))
    assert bytes(submit.prompt) == b"user: Hi\n[enable_thinking=False]assistant:"


@in_loop
async def test_the_generation_prompt_can_be_left_out() -> None:
    submit = await submitted(chat_body(add_generation_prompt=False))
    assert bytes(submit.prompt) == b"user: Hi\n"


@in_loop
async def test_a_stream_sends_role_then_text_then_finish_then_done() -> None:
    response = await post(FakeEngine(text_reply("Hello!")), chat_body(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo!"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@in_loop
async def test_asked_for_usage_comes_in_a_last_chunk_without_choices() -> None:
    body = chat_body(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events_of((await post(FakeEngine(text_reply("Hello!")), body)).text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7
    assert last["metrics"]["speculative_decoding"]["num_drafts"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)


@in_loop
async def test_streamed_text_of_every_choice_equals_the_whole_answer() -> None:
    fields = {"n": 3, "seed": 11, "logprobs": True, "top_logprobs": 2}
    whole = (await post(FakeEngine(), chat_body(**fields))).json()
    chunks = events_of((await post(FakeEngine(), chat_body(stream=True, **fields))).text)[:-1]
    for choice in whole["choices"]:
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        text = "".join(part["delta"].get("content", "") for part in parts)
        assert text == choice["message"]["content"]
        entries = [
            entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]
        ]
        assert entries == choice["logprobs"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


@in_loop
async def test_the_same_seed_is_passed_on_and_reported() -> None:
    first = (await post(FakeEngine(), chat_body(seed=42))).json()
    second = (await post(FakeEngine(), chat_body(seed=42))).json()
    assert first["choices"] == second["choices"]
    assert first["seed"] == 42


@in_loop
async def test_a_drawn_seed_is_reported_and_reproduces_the_answer() -> None:
    first = (await post(FakeEngine(), chat_body())).json()
    again = (await post(FakeEngine(), chat_body(seed=first["seed"]))).json()
    assert again["choices"] == first["choices"]
    assert 0 <= first["seed"] < 2**53


@in_loop
async def test_a_negative_seed_is_the_64_bit_number_of_the_same_bits() -> None:
    assert (await submitted(chat_body(seed=-1))).params.seed == 2**64 - 1


@in_loop
async def test_logprobs_have_the_chat_format() -> None:
    body = chat_body(logprobs=True, top_logprobs=2, max_tokens=1)
    answer = (await post(FakeEngine(text_reply("a")), body)).json()
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "a",
                "logprob": -6.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.25, "bytes": [98]},
                    {"token": "c", "logprob": -0.5, "bytes": [99]},
                ],
            }
        ],
        "refusal": None,
    }


@in_loop
async def test_every_sampling_field_reaches_the_engine() -> None:
    submit = await submitted(
        chat_body(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, n=2, seed=3,
            presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1,
            logit_bias={"65": 5, "66": -100}, allowed_token_ids=[65, 66], max_completion_tokens=9,
            min_tokens=2, ignore_eos=True, stop="END", stop_token_ids=[10],
            include_stop_str_in_output=True, logprobs=True, top_logprobs=4,
            logprobs_mode="processed", bad_words=["no"], cache_salt="tenant", priority=3,
            timeout=12.5,
            speculation={"enabled": True, "max_draft_len": 2, "drafters": ["ngram"]},
        )
    )  # fmt: skip
    params = submit.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.1, 0.2)
    assert params.repetition_penalty == 1.1
    assert params.logit_bias == {65: 5.0, 66: -100.0}
    assert params.allowed_token_ids == (65, 66)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (9, 2, True)
    assert (params.stop, params.stop_token_ids, params.include_stop) == (("END",), (10,), True)
    assert (params.logprobs, params.top_logprobs) == (True, 4)
    assert params.logprobs_mode == "processed"
    assert params.bad_words == ("no",)
    assert (submit.n, submit.cache_salt, submit.priority) == (2, "tenant", 3)
    assert submit.timeout_s == 12.5
    assert submit.speculation.enabled is True
    assert submit.speculation.max_draft_len == 2
    assert submit.speculation.drafters == ("ngram",)


@pytest.mark.parametrize(
    "field", [{"max_draft_len": 0}, {"max_draft_nodes": 0}, {"drafters": []}, {"enabled": False}]
)
@in_loop
async def test_a_bound_of_zero_or_no_drafter_switches_speculation_off(
    field: dict[str, Any],
) -> None:
    assert (await submitted(chat_body(speculation=field))).speculation.enabled is False


@in_loop
async def test_defaults_ask_for_plain_sampling_to_the_end_of_the_context() -> None:
    submit = await submitted(chat_body())
    assert submit.params.temperature == 1.0
    assert submit.params.max_tokens == 200 - len(submit.prompt)
    assert submit.speculation.enabled is None


@in_loop
async def test_speculation_metrics_carry_both_naming_schemes() -> None:
    metrics = (await post(FakeEngine(), chat_body())).json()["metrics"]
    assert metrics["queue_time_ms"] == pytest.approx(100.0)
    assert metrics["time_to_first_token_ms"] == pytest.approx(200.0)
    assert metrics["generation_time_ms"] == pytest.approx(1000.0)
    assert metrics["speculative_decoding"] == {
        "num_drafts": 4,
        "num_draft_tokens": 10,
        "num_accepted_tokens": 6,
        "num_accepted_tokens_per_pos": [3, 2, 1],
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.6,
        "acceptance_histogram": [1, 1, 1, 1, 0],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 6,
        "num_spec_tokens": 4,
        "num_steps": 5,
        "num_draft_tokens_per_pos": [4, 3, 3],
        "drafters": {"suffix": 6},
    }


@in_loop
async def test_several_choices_have_their_own_metrics_and_a_sum() -> None:
    body = (await post(FakeEngine(), chat_body(n=2))).json()
    assert body["metrics"]["speculative_decoding"]["num_drafts"] == 8
    for choice in body["choices"]:
        assert choice["metrics"]["speculative_decoding"]["num_drafts"] == 4


@in_loop
async def test_token_ids_come_when_asked_for() -> None:
    body = (await post(FakeEngine(text_reply("ab")), chat_body(return_token_ids=True))).json()
    assert bytes(body["prompt_token_ids"]) == b"user: Hi\nassistant:"
    assert body["choices"][0]["token_ids"] == [97, 98, EOS]


@in_loop
async def test_streamed_token_ids_lose_nothing() -> None:
    body = chat_body(stream=True, return_token_ids=True)
    chunks = events_of((await post(FakeEngine(text_reply("ab")), body)).text)[:-1]
    assert bytes(chunks[0]["prompt_token_ids"]) == b"user: Hi\nassistant:"
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == [97, 98, EOS]


@in_loop
async def test_the_stop_string_is_named() -> None:
    body = (await post(FakeEngine(text_reply("one END two")), chat_body(stop=["END"]))).json()
    choice = body["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


@in_loop
async def test_prompt_logprobs_are_keyed_by_token_id() -> None:
    body = (await post(FakeEngine(), chat_body(prompt_logprobs=1))).json()
    first, second, *_ = body["prompt_logprobs"]
    assert first is None
    assert second[str(ord("s"))] == {"logprob": -3.5, "rank": 2, "decoded_token": "s"}
    assert second[str(ord("t"))] == {"logprob": -0.25, "rank": 1, "decoded_token": "t"}


@in_loop
async def test_a_long_body_is_tokenised_off_the_event_loop() -> None:
    engine = FakeEngine(max_model_len=100_000)
    messages = [{"role": "user", "content": "x" * 20_000}]
    assert (await post(engine, chat_body(messages=messages))).status_code == 200
    assert len(engine.submitted[0].prompt) > 20_000
