"""Acceptance in the engine: every turn of a conversation is answered in its turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slipstream.config.load import load_config
from slipstream.engine.llm import LLM, Generation
from slipstream.sampling.params import SamplingParams
from slipstream.training.conversations import Conversation, Message
from slipstream.training.served import DraftShape, ServedNet, drafter_settings, measure_served
from tests.support.tiny_llm import tiny_llm, write_tiny_model

PARAMS = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    return tiny_llm(write_tiny_model(tmp_path), ["ngram"])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_the_second_turn_follows_the_answer_to_the_first(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[int], str]] = []
    completed = llm.completed

    def recording(
        prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> Iterator[tuple[int, Generation]]:
        for index, generation in completed(prompts, params):
            seen.append((list(prompts[index]), generation.text))
            yield index, generation

    monkeypatch.setattr(llm, "completed", recording)
    conversations = [
        Conversation("two", "chat", ((user("ab"),), (user("cd"),))),
        Conversation("one", "code", ((user("ef"),),)),
    ]
    told: list[int] = []

    rows = measure_served(llm, conversations, PARAMS, told.append)

    assert [(row.label, row.num_prompts, row.num_turns) for row in rows] == [
        ("all", 2, 3),
        ("chat", 1, 2),
        ("code", 1, 1),
    ]
    assert told == [1, 1, 1]
    answer = next(text for prompt, text in seen if prompt == llm.render([user("ab")]))
    second = llm.render([user("ab"), {"role": "assistant", "content": answer}, user("cd")])
    assert [prompt for prompt, _ in seen][-1] == second


def test_a_turn_that_leaves_no_room_is_left_out_with_those_behind_it(llm: LLM) -> None:
    long = "x" * 2 * llm.engine.info.max_model_len
    turns = ((user("ab"),), (user(long),), (user("cd"),))
    told: list[int] = []
    rows = measure_served(llm, [Conversation("long", "chat", turns)], PARAMS, told.append)
    assert rows[0].num_turns == 1
    assert told == [1, 1, 1]


NET = ServedNet("dspark", "run/draft", draft_len=4)


@pytest.mark.parametrize(
    ("shape", "lens"),
    [
        (DraftShape(), (4, 1, 4, 4)),
        (DraftShape(num_children=3), (4, 3, 4, 12)),
        (DraftShape(max_draft_len=2, num_children=2, num_nodes=3), (2, 2, 2, 3)),
    ],
)
def test_the_shape_of_a_draft_becomes_settings(
    shape: DraftShape, lens: tuple[int, int, int, int]
) -> None:
    overrides = drafter_settings(NET, shape)
    chosen = load_config(file=None, env={}, overrides=overrides).speculation
    (drafter,) = chosen.drafters
    assert drafter.model_dump().items() >= {"kind": "dspark", "source": "run/draft"}.items()
    own = drafter.model_dump()
    assert lens == (
        own["max_draft_len"],
        own["num_children"],
        chosen.max_draft_len,
        chosen.max_draft_nodes,
    )


def test_other_drafters_are_merged_with_it() -> None:
    overrides = drafter_settings(NET, DraftShape(beside=("suffix",)))
    chosen = load_config(file=None, env={}, overrides=overrides).speculation
    assert [item.kind for item in chosen.drafters] == ["suffix", "dspark"]
