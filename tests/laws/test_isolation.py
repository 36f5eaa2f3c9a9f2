"""Requests that come and go at random: each gets the tokens that it gets alone, undrafted.

What is drawn at random: weights, prompts that share beginnings, who is asked when, who gives up.
Memory is short, so that requests wait, are sent back and find prefixes of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.engine.messages import Tokens
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import Drafter
from tests.laws.test_lossless_families import (
    RECURRENT,
    TIGHT,
    Case,
    DraftingLLM,
    KnowingDrafter,
    cases,
    check_nothing_is_left,
    plain_answers,
    preemptions,
    state_bytes,
)
from tests.laws.test_lossless_mtp import MTP, faults, kv_bytes, with_mtp
from tests.support.mtp import write_head_folder
from tests.support.native import native_kernels
from tests.support.tiny_families import VOCAB_SIZE, write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_FINISHED = 10
MAX_LEN, NUM_PAGES = 80, 22  # the longest request takes nearly all of them, and four run at a time


def come_and_go(
    llm: DraftingLLM, asked: Sequence[Case], answers: Sequence[list[int]], random: Random
) -> None:
    """Ask, read on and give up in random order until enough requests are through."""
    streams: dict[int, Iterator[Tokens]] = {}
    given: dict[int, list[int]] = {}
    num_finished = 0
    while num_finished < NUM_FINISHED:
        index = random.randrange(len(answers))
        if index not in streams:
            case = asked[index]
            streams[index], given[index] = llm.stream(case.prompt, case.params), []
        elif random.random() < 0.05:
            streams.pop(index).close()  # type: ignore[attr-defined]  # it is a generator
            llm.engine.check_integrity()
        elif (event := next(streams[index], None)) is not None:
            given[index].extend(event.token_ids)
            assert given[index] == answers[index][: len(given[index])]
        else:
            del streams[index]
            assert given[index] == answers[index]
            num_finished += 1
    streams.clear()
    llm.close()


def random_cases(random: Random) -> list[Case]:
    """Requests of different lengths, some of which begin alike and some of which repeat."""

    def draw(count: int) -> list[int]:
        return [random.randrange(3, VOCAB_SIZE) for _ in range(count)]

    shared, made = draw(random.randint(16, 30)), list[Case]()
    for number in range(6):
        own = draw(random.randint(5, 20))
        prompt = random.choice([own, [*own, *own], [*shared, *own], [*shared, *own]])
        params = SamplingParams(
            temperature=random.choice([0.0, 0.7, 1.0]),
            seed=number,
            max_tokens=random.randint(12, 24),
            ignore_eos=True,
        )
        made.append(Case(prompt, params))
    return made


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", RECURRENT)
def test_requests_with_few_states_never_change_each_others_answers(
    tmp_path: Path, family: str, seed: int
) -> None:
    path, random = write_tiny_family(tmp_path, family), Random(seed)
    answers = plain_answers(path, "float32")
    texts = [[*case.prompt, *answer] for case, answer in zip(cases(), answers, strict=True)]
    settings = TIGHT | {"memory.state_bytes": state_bytes(path, 4 + seed)}
    with DraftingLLM(path, settings, [KnowingDrafter(texts)]) as llm:
        come_and_go(llm, cases(), answers, random)
        check_nothing_is_left(llm)


@pytest.mark.parametrize("others", ["alone", "beside suffix", "beside suffix and the truth"])
@pytest.mark.parametrize("family", [*RECURRENT, "deepseek_v3"])
def test_requests_with_heads_never_change_each_others_answers(
    tmp_path: Path, family: str, others: str
) -> None:
    random = Random(f"{family} {others}")
    path = write_tiny_family(tmp_path / "target", family, seed=random.randrange(100))
    drafters = "mtp" if others == "alone" else "mtp and suffix"
    settings = with_mtp(path, family, "float32", drafters) | pressure(path, family, random)
    check_isolation(path, settings, random, others)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_requests_with_a_head_in_native_calls_never_change_each_others_answers(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    native_kernels()
    random = Random(family)
    path = write_tiny_family(tmp_path / "target", family, seed=random.randrange(100))
    settings = with_mtp(path, family, "bfloat16", "mtp") | pressure(path, family, random)
    settings["memory.kv_bytes"] //= 2
    head = write_head_folder(tmp_path / "head", path)
    settings["speculation.drafters"] = [MTP | {"dtype": "bfloat16", "source": str(head)}]
    caplog.set_level("INFO", "slipstream.speculation")
    check_isolation(path, settings, random, "alone")
    assert "native calls draft" in caplog.text


def pressure(path: Path, family: str, random: Random) -> dict[str, Any]:
    """Settings with which requests wait for each other, in float32."""
    settings: dict[str, Any] = {
        "memory.kv_bytes": kv_bytes(path, NUM_PAGES),
        "memory.high_at": 1.0,
        "model.max_model_len": MAX_LEN,
    }
    if family in RECURRENT:
        settings["memory.state_bytes"] = state_bytes(path, random.randint(9, 14))
    return settings


def check_isolation(path: Path, settings: Mapping[str, Any], random: Random, others: str) -> None:
    """Random requests: their answers, and what is left behind them."""
    asked = random_cases(random)
    answers = plain_answers(path, settings["model.dtype"], asked)
    texts = [[*case.prompt, *answer] for case, answer in zip(asked, answers, strict=True)]
    knowing: list[Drafter] = [KnowingDrafter(texts)] if others.endswith("truth") else []
    with DraftingLLM(path, settings, knowing) as llm:
        come_and_go(llm, asked, answers, random)
        assert llm.engine.kv.usage().num_hit_tokens > 0
        metrics = str(llm.engine.call("metrics"))
        # With the truth among the drafts, there are few steps in which memory can be short.
        assert preemptions(metrics) > 0 or others.endswith("truth")
        if others == "alone":
            assert 'slipstream_memory_bytes{owner="drafters"} 0.0' in metrics
        assert not faults(llm)
        check_nothing_is_left(llm)
