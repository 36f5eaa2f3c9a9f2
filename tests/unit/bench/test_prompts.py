"""Reading, choosing and grouping prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.bench.prompts import (
    Prompt,
    default_prompts,
    group_prompts,
    read_prompts,
    select_prompts,
)
from slipstream.errors import ConfigError
from tests.support.paths import shared_dir


def of_categories(*categories: str) -> list[Prompt]:
    return [Prompt(str(i), category, text="x") for i, category in enumerate(categories)]


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_lines_hold_messages_or_a_text_and_other_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    lines = [
        {"id": "a", "category": "qa", "messages": [user("Hi\u2028there")], "reference": "x"},
        {"prompt": "Once"},
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(text, encoding="utf-8")
    chat, text_prompt = read_prompts([path])
    assert (chat.prompt_id, chat.category) == ("a", "qa")
    assert (text_prompt.prompt_id, text_prompt.category) == ("mixed/2", "mixed")
    assert text_prompt.text == "Once"


def test_two_user_messages_in_a_row_are_two_turns() -> None:
    system = {"role": "system", "content": "s"}
    prompt = Prompt("p", "c", messages=(system, user("1"), user("2")))
    assert list(prompt.turns()) == [(system, user("1")), (user("2"),)]


def test_scripted_answers_stay_in_one_turn() -> None:
    answer = {"role": "assistant", "content": "a"}
    prompt = Prompt("p", "c", messages=(user("1"), answer, user("2")))
    assert list(prompt.turns()) == [(user("1"), answer, user("2"))]


def test_a_text_is_one_turn() -> None:
    assert list(Prompt("p", "c", text="Once").turns()) == [()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1, is not JSON"),
        ('{"messages": []}', "line 1, holds no prompt"),
        ("[1]", "line 1, holds no prompt"),
        ("\n", "holds no prompts"),
        ("[" * 100_000, "line 1, is not JSON"),
        (r'{"id": "a\ud800", "prompt": "x"}', r"line 1, has id 'a.ud800': .* U\+D800"),
        (r'{"category": "\ud800", "prompt": "x"}', "line 1, has category"),
    ],
)
def test_a_line_without_a_prompt_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_prompts([path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        read_prompts([tmp_path / "none.jsonl"])


def test_two_prompts_of_one_id_are_refused_with_both_places(tmp_path: Path) -> None:
    first, second = tmp_path / "1" / "p.jsonl", tmp_path / "2" / "p.jsonl"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text('{"prompt": "x"}\n{"id": "a", "prompt": "y"}\n')
    with pytest.raises(ConfigError, match=r"1/p.jsonl, line 1 and .*2/p.jsonl, line 1 have") as no:
        read_prompts([first, second])
    assert "of its own" in str(no.value.hint)
    assert len(read_prompts([first, second], may_share_ids=True)) == 4
    first.write_text('{"id": 7, "prompt": "x"}\n{"id": "7", "prompt": "y"}\n')
    with pytest.raises(ConfigError, match=r'line 1 and .*line 2 have the same id, "7"'):
        read_prompts([first])


def test_an_id_or_category_of_null_is_none(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": null, "category": null, "prompt": "x"}\n{"id": "", "prompt": "y"}\n')
    first, second = read_prompts([path])
    assert (first.prompt_id, first.category) == ("p/1", "p")
    assert second.prompt_id == "p/2"


def test_a_choice_is_evenly_spaced() -> None:
    prompts = of_categories(*"aaaaaaaa")
    assert ids(select_prompts(prompts, max_prompts=4)) == ["0", "2", "4", "6"]
    assert ids(select_prompts(prompts, max_prompts=99)) == ids(prompts)


def test_a_choice_per_category_keeps_the_order() -> None:
    prompts = of_categories(*"ababbbac")
    assert ids(select_prompts(prompts, per_category=2)) == ["0", "1", "2", "4", "7"]


def test_groups_hold_one_category_and_every_prompt_once() -> None:
    groups = group_prompts(of_categories(*"ababac"), 2)
    assert groups == [(0, 2), (1, 3), (4,), (5,)]


def test_the_set_that_ships_with_slipstream_has_categories_large_enough_for_intervals() -> None:
    prompts = default_prompts()
    assert len({prompt.prompt_id for prompt in prompts}) == len(prompts)
    for category in {prompt.category for prompt in prompts}:
        assert sum(prompt.category == category for prompt in prompts) >= 5


def test_spec_bench_is_read_with_its_turns() -> None:
    prompts = read_prompts([shared_dir("data", "open", "spec_bench.jsonl")])
    turns = {prompt.category: len(list(prompt.turns())) for prompt in prompts}
    assert turns["writing"] == 2
    assert turns["summarization"] == 1
