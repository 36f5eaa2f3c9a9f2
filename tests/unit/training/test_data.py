from __future__ import annotations

import errno
import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from slipstream.errors import CapacityError, ConfigError, WeightsError
from slipstream.training.answers import Answer, append_answers, read_answers, read_interrupted
from slipstream.training.conversations import Conversation, usable
from slipstream.training.data import begin_folder, import_answers
from slipstream.training.dataset import (
    ANSWERS_FILE,
    open_dataset,
    read_manifest,
    split_of,
    write_manifest,
)
from slipstream.training.draft_vocab import coverage, select_draft_tokens, unused_token
from slipstream.training.generate import GenerationPlan, generate_answers
from slipstream.training.overlap import ProtectedTexts, words_of
from slipstream.training.self_prompts import write_self_prompts
from tests.support.tiny_llm import tiny_llm
from tests.support.training import counting_answers, tiny_target, write_dataset

PLAN = GenerationPlan(temperatures=(0.0, 1.0), max_tokens=6, seed=4)


def conversation(number: int, *texts: str) -> Conversation:
    turns = tuple(({"role": "user", "content": text},) for text in texts)
    return Conversation(f"prompt-{number}", "chat", turns)


def test_a_text_that_shares_eight_words_is_a_repetition() -> None:
    protected = ProtectedTexts(["One two, three FOUR five six seven eight nine.", "\uff28ello"])
    assert protected.repeats(["zero ONE two three four five six seven eight"])
    assert not protected.repeats(["one two three four five six seven"])
    assert protected.repeats(["hello!"])  # short ones are compared as wholes
    assert not protected.repeats(["hello you"])


def test_scripts_without_spaces_are_compared_by_character() -> None:
    assert words_of("你好 world 2") == ("你", "好", "world", "2")


def test_prompts_that_repeat_are_left_out_and_counted() -> None:
    dropped: Counter[str] = Counter()
    protected = ProtectedTexts(["what is it"])
    given = [conversation(0, "Why?"), conversation(1, "why"), conversation(2, "What is it?")]
    given += [conversation(3, "..."), conversation(4, "new", "What is it")]
    assert usable(given, protected, dropped) == given[:1]
    assert dropped == {
        "repeats another prompt": 1,
        "repeats an evaluation prompt": 2,
        "without words": 1,
    }


def test_the_split_of_a_prompt_is_the_same_for_all_its_answers() -> None:
    sides = [split_of(f"prompt-{number}", 0.2) for number in range(2000)]
    assert 300 < sides.count("validation") < 500
    assert sides == [split_of(f"prompt-{number}", 0.2) for number in range(2000)]


def test_a_line_that_holds_no_answer_is_named(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl.gz"
    good = counting_answers(1)[0].model_dump_json()
    file.write_bytes(gzip.compress(f'{good}\n{{"prompt_id": "a"}}\n'.encode()))
    with pytest.raises(ConfigError, match=r"line 2, holds no answer: temperature: Field required"):
        list(read_answers(file))


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    answers = counting_answers(2)
    append_answers(file, answers)
    with file.open("a") as lines:
        lines.write('{"prompt_id": "pro')
    assert read_interrupted(file) == answers
    append_answers(file, counting_answers(3)[2:])
    assert len(list(read_answers(file))) == 3


def test_a_changed_file_of_answers_is_refused(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    write_dataset(tmp_path / "data", target, counting_answers(4))
    append_answers(tmp_path / "data" / ANSWERS_FILE, counting_answers(5)[4:])
    with pytest.raises(WeightsError, match="not what its manifest describes"):
        open_dataset(tmp_path / "data", target.identity)


def test_what_is_added_keeps_sources_and_the_share_that_is_held_out(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    path = tmp_path / "data"
    write_dataset(path, target, counting_answers(4), share=0.25)
    write_manifest(path, target.identity, 0.25, ["more"], Counter())
    assert read_manifest(path).sources == ("a test", "more")
    with pytest.raises(ConfigError, match=r"holds out 0\.25 of its prompts, not 0\.5"):
        begin_folder(path, target.identity, 0.5)


def test_a_folder_says_whose_answers_it_holds_before_the_first(tmp_path: Path) -> None:
    target, other = tiny_target(tmp_path), tiny_target(tmp_path, seed=2)
    file = begin_folder(tmp_path / "data", target.identity, 0.25)
    append_answers(file, counting_answers(2))  # and then it is killed
    with pytest.raises(WeightsError, match="were made for target target-1"):
        begin_folder(tmp_path / "data", other.identity, 0.25)
    with pytest.raises(ConfigError, match=r"holds out 0\.25 of its prompts, not 0\.5"):
        begin_folder(tmp_path / "data", target.identity, 0.5)
    assert begin_folder(tmp_path / "data", target.identity, 0.25) == file
    with pytest.raises(WeightsError, match="not what its manifest describes"):
        open_dataset(tmp_path / "data", target.identity)


def test_answers_of_nobody_knows_whom_are_not_added_to(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    append_answers(tmp_path / ANSWERS_FILE, counting_answers(1))
    with pytest.raises(WeightsError, match=r"no manifest\.json that says of which target") as no:
        begin_folder(tmp_path, target.identity, 0.25)
    assert "--import" in str(no.value.hint)


def test_a_file_of_answers_that_is_gone_is_named(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    write_dataset(tmp_path / "data", target, counting_answers(4))
    (tmp_path / "data" / ANSWERS_FILE).unlink()
    with pytest.raises(WeightsError, match=r"answers\.jsonl is missing"):
        open_dataset(tmp_path / "data", target.identity)


@pytest.mark.parametrize("name", ["/proc/x", "a-file"])
def test_a_folder_that_cannot_be_made_is_named(name: str, tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    (tmp_path / "a-file").write_text("x")
    with pytest.raises(WeightsError, match=f"cannot write to .*{name}") as no:
        begin_folder(tmp_path / name, target.identity, 0.25)
    assert "use another folder" in str(no.value.hint)


def test_a_full_disk_is_told_and_keeps_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    with pytest.raises(CapacityError, match="no space is left") as no:
        append_answers(full, counting_answers(1))
    assert "answers that are whole are kept" in str(no.value.hint)
    target = tiny_target(tmp_path)
    write_dataset(tmp_path / "data", target, counting_answers(4))
    before = read_manifest(tmp_path / "data")

    def fill_up(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fill_up)
    with pytest.raises(CapacityError, match="no space is left"):
        write_manifest(tmp_path / "data", target.identity, 0.25, ["more"], Counter())
    assert read_manifest(tmp_path / "data") == before


def test_imports_leave_out_what_is_there_or_protected(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    tokenizer = target.loaded.tokenizer

    def answer(number: int, text: str) -> Answer:
        ids = [1, *tokenizer.encode(f"user\n{text}"), 2]
        return Answer(
            prompt_id=f"prompt-{number}",
            temperature=0.0,
            prompt_ids=tuple(ids),
            response_ids=(5, 6, 7),
            finish="length",
        )

    append_answers(tmp_path / "a.jsonl", [answer(0, "hi"), answer(1, "secret"), answer(0, "hi")])
    into = begin_folder(tmp_path / "data", target.identity, 0.1)
    dropped: Counter[str] = Counter()
    told: list[int] = []
    files, protected = [tmp_path / "a.jsonl"], ProtectedTexts(["Secret."])

    import_answers(files, into, tokenizer, protected, {"prompt-0": "chat"}, dropped, told.append)

    (kept,) = read_answers(into)
    assert (kept.prompt_id, kept.category) == ("prompt-0", "chat")
    assert dropped == {"there already": 1, "repeats an evaluation prompt": 1}
    assert sum(told) == 3

    append_answers(tmp_path / "b.jsonl", [answer(0, "hi"), answer(0, "something else")])
    import_answers([tmp_path / "b.jsonl"], into, tokenizer, protected, {}, dropped, told.append)
    assert len(list(read_answers(into))) == 2  # of one id, and not the same was asked


def test_answers_of_a_larger_vocabulary_are_refused(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    foreign = counting_answers(1)[0].model_copy(update={"response_ids": (400, 5, 6)})
    append_answers(tmp_path / "a.jsonl", [foreign])
    into = begin_folder(tmp_path / "data", target.identity, 0.1)
    with pytest.raises(WeightsError, match="token 400, but the target has 320"):
        import_answers(
            [tmp_path / "a.jsonl"],
            into,
            target.loaded.tokenizer,
            ProtectedTexts([]),
            {},
            Counter(),
            lambda _: None,
        )


class KillAfter:
    """Ends the process, as it were, behind some answers."""

    def __init__(self, count: int) -> None:
        self._left = count

    def done(self, answer: Answer | None) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1


def test_a_killed_generation_goes_on_to_the_same_answers(tmp_path: Path) -> None:
    folder = tmp_path / "target-1"
    tiny_target(tmp_path)
    given = [conversation(number, f"question {number}") for number in range(4)]
    given.append(conversation(9, "first", "and then?"))
    with tiny_llm(folder) as llm:
        generate_answers(llm, given, PLAN, tmp_path / "whole.jsonl", Counter(), lambda _: None)
        killed = KillAfter(2)
        with pytest.raises(KeyboardInterrupt):
            generate_answers(llm, given, PLAN, tmp_path / "cut.jsonl", Counter(), killed.done)
        generate_answers(llm, given, PLAN, tmp_path / "cut.jsonl", Counter(), lambda _: None)
    whole = {answer.key: answer for answer in read_answers(tmp_path / "whole.jsonl")}
    assert {answer.key: answer for answer in read_answers(tmp_path / "cut.jsonl")} == whole
    assert len(whole) == 6
    assert len({answer.seed for answer in whole.values()}) == 6
    second = next(answer for answer in whole.values() if answer.turn == 1)
    first = next(a for a in whole.values() if a.prompt_id == second.prompt_id and a.turn == 0)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


def test_an_answer_belongs_to_a_prompt_only_if_the_same_was_asked(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    file, dropped = tmp_path / "answers.jsonl", Counter[str]()
    told: list[Answer | None] = []
    with tiny_llm(tmp_path / "target-1") as llm:
        for texts in (("first", "and then?"), ("other", "and then?"), ("first", "and why?")):
            generate_answers(llm, [conversation(1, *texts)], PLAN, file, dropped, told.append)
    assert [answer is None for answer in told] == [False, False, False, False, True, False]
    first, second, other, behind_other, _, why = told
    assert first is not None
    assert other is not None
    assert other.prompt_ids != first.prompt_ids
    for turn, before in ((second, first), (behind_other, other), (why, first)):
        assert turn is not None
        assert turn.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
    assert not dropped


def test_what_is_answered_is_not_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_target(tmp_path)
    given, file = [conversation(1, "first", "and then?")], tmp_path / "answers.jsonl"
    told: list[Answer | None] = []
    with tiny_llm(tmp_path / "target-1") as llm:
        generate_answers(llm, given, PLAN, file, Counter(), lambda _: None)
        monkeypatch.setattr(llm, "render", None)
        generate_answers(llm, given, PLAN, file, Counter(), told.append)
    assert told == [None, None]


def test_answers_that_do_not_say_what_was_asked_are_told_apart_by_tokens(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    file = tmp_path / "answers.jsonl"
    told: list[Answer | None] = []
    with tiny_llm(tmp_path / "target-1") as llm:
        given = [conversation(1, "first", "and then?")]
        generate_answers(llm, given, PLAN, file, Counter(), lambda _: None)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            del line["messages_sha256"]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        given.append(conversation(2, "second"))
        generate_answers(llm, given, PLAN, file, Counter(), told.append)
    assert [answer and answer.prompt_id for answer in told] == [None, "prompt-2", None]


def test_turns_without_an_answer_are_counted_by_reason(tmp_path: Path) -> None:
    tiny_target(tmp_path)
    dropped: Counter[str] = Counter()
    given = [conversation(1, "\ud800", "and then?"), conversation(2, "long " * 2000)]
    with tiny_llm(tmp_path / "target-1") as llm:
        generate_answers(llm, given, PLAN, tmp_path / "a.jsonl", dropped, lambda _: None)
    assert dropped == {
        "the chat template or the tokenizer refuses it": 1,
        "follows a turn without an answer": 1,
        "leaves no room for an answer": 1,
    }


def test_the_target_writes_prompts_that_are_not_written_twice(tmp_path: Path) -> None:
    folder = tmp_path / "target-1"
    tiny_target(tmp_path)
    file = tmp_path / "prompts.jsonl"
    told: list[int] = []
    with tiny_llm(folder) as llm:
        write_self_prompts(llm, file, 3, 7, told.append)
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text(file.read_text().split("\n")[0] + '\n{"number"')
        write_self_prompts(llm, file, 3, 7, told.append)
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(again, key=lambda item: item["number"]) == sorted(
        entries, key=lambda item: item["number"]
    )
    assert sum(told) == 5


def test_the_draft_knows_the_most_frequent_tokens() -> None:
    answers = counting_answers(8)
    ids = select_draft_tokens(answers, 320, 10, always=[300])
    assert 300 in ids.tolist()
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert 0.1 < coverage(answers, ids, 320) < 1.0
    assert coverage(answers, select_draft_tokens(answers, 320, 320), 320) == 1.0
    with pytest.raises(ConfigError, match="must be 1 to 320"):
        select_draft_tokens(answers, 320, 321)


def test_the_mask_is_a_token_that_nothing_uses() -> None:
    assert unused_token(counting_answers(8), 320) == 0
    everything = counting_answers(1)[0].model_copy(update={"prompt_ids": tuple(range(320))})
    with pytest.raises(ConfigError, match="none is free"):
        unused_token([everything], 320)
