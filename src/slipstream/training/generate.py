"""Answers of the target to prompts, through our own engine; what is there is not made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.engine.llm import LLM, Generation
from slipstream.errors import RequestError
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import Answer, append_answers, read_interrupted
from slipstream.training.conversations import Conversation, Message, digest_of_turns, hash_of

_MIN_ROOM = 16  # tokens of an answer that must fit behind a prompt


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """How answers are made.

    Attributes:
        temperatures: Each prompt is answered at one of them, chosen by its hash; naming one twice
            doubles its share.
        max_tokens: Longest answer.
        seed: Of the run; each answer records its own.
    """

    temperatures: tuple[float, ...]
    max_tokens: int
    seed: int

    def temperature_of(self, prompt_id: str) -> float:
        """The temperature that a prompt is answered at."""
        return self.temperatures[hash_of(prompt_id) % len(self.temperatures)]


@dataclass(slots=True)
class _Talk:
    """A conversation and what is known of it: the answers to its first turns, in order."""

    conversation: Conversation
    temperature: float
    answers: list[Answer] = field(default_factory=list)

    @property
    def turn(self) -> int:
        """The turn that is to be answered."""
        return len(self.answers)

    @property
    def key(self) -> str:
        """See `Answer.key`."""
        return f"{self.conversation.prompt_id} turn {self.turn} T {self.temperature:g}"

    @property
    def digest(self) -> str:
        """See `Answer.messages_sha256`."""
        return digest_of_turns(self.conversation.turns[: self.turn + 1])


@dataclass(frozen=True, slots=True)
class _Job:
    talk: _Talk
    seed: int
    prompt_ids: tuple[int, ...]


def generate_answers(
    llm: LLM,
    conversations: Sequence[Conversation],
    plan: GenerationPlan,
    file: Path,
    dropped: Counter[str],
    on_done: Callable[[Answer | None], None],
) -> None:
    """Answer every turn of every conversation that `file` has no answer to, and append it there.

    An answer that is there belongs to a turn if it has its prompt's id, and the same was asked.

    Args:
        dropped: Reasons why turns could not be answered are counted into it.
        on_done: Told each answer when it is written, and None for one that was there.
    """
    known: dict[str, list[Answer]] = {}
    for answer in read_interrupted(file):
        known.setdefault(answer.key, []).append(answer)
    talks = [_Talk(item, plan.temperature_of(item.prompt_id)) for item in conversations]
    num_turns = max((len(item.turns) for item in conversations), default=0)
    for turn in range(num_turns):
        jobs = []
        for talk in talks:
            if len(talk.conversation.turns) <= turn:
                continue
            if talk.turn < turn:
                dropped["follows a turn without an answer"] += 1
                continue
            candidates = known.get(talk.key, ())
            present = _asked_alike(talk, candidates)
            job, reason = (None, "") if present else _job(llm, talk, plan)
            if job is not None:  # a file that does not say what was asked has its tokens
                present = _of_same_tokens(job, candidates)
            if present is not None:
                talk.answers.append(present)
                on_done(None)
            elif job is None:
                dropped[reason] += 1
            else:
                jobs.append(job)
        for job, answer in _run(llm, jobs, plan):
            append_answers(file, [answer])
            job.talk.answers.append(answer)
            on_done(answer)


def _asked_alike(talk: _Talk, answers: Sequence[Answer]) -> Answer | None:
    """The answer whose file says that the same was asked; nothing is rendered for it."""
    digest = talk.digest
    return next((answer for answer in answers if answer.messages_sha256 == digest), None)


def _of_same_tokens(job: _Job, answers: Sequence[Answer]) -> Answer | None:
    """Of answers that do not say what was asked, the one to the same tokens."""
    unsaid = (answer for answer in answers if answer.messages_sha256 is None)
    return next((answer for answer in unsaid if answer.prompt_ids == job.prompt_ids), None)


def _run(llm: LLM, jobs: Sequence[_Job], plan: GenerationPlan) -> Iterator[tuple[_Job, Answer]]:
    params = [
        SamplingParams(
            temperature=job.talk.temperature,
            max_tokens=min(plan.max_tokens, _room(llm, job.prompt_ids)),
            seed=job.seed,
        )
        for job in jobs
    ]
    for index, generation in llm.completed([job.prompt_ids for job in jobs], params):
        yield jobs[index], _answer(jobs[index], generation)


def _answer(job: _Job, generation: Generation) -> Answer:
    choice = generation.choices[0]
    return Answer(
        prompt_id=job.talk.conversation.prompt_id,
        turn=job.talk.turn,
        category=job.talk.conversation.category,
        temperature=job.talk.temperature,
        seed=job.seed,
        prompt_ids=job.prompt_ids,
        response_ids=tuple(choice.token_ids),
        finish="stop" if choice.finish_reason == "stop" else "length",
        messages_sha256=job.talk.digest,
    )


def _job(llm: LLM, talk: _Talk, plan: GenerationPlan) -> tuple[_Job | None, str]:
    """None, and the reason in words, where a turn cannot be answered."""
    conversation, turn = talk.conversation, talk.turn
    messages: list[Message] = []
    for earlier, added in zip(talk.answers, conversation.turns, strict=False):
        text = llm.tokenizer.decode(earlier.response_ids)
        messages += [*added, {"role": "assistant", "content": text}]
    messages += conversation.turns[turn]
    try:
        prompt_ids = tuple(llm.render(messages))
    except RequestError:
        return None, "the chat template or the tokenizer refuses it"
    if _room(llm, prompt_ids) < _MIN_ROOM:
        return None, "leaves no room for an answer"
    seed = derive(plan.seed, hash_of(f"{conversation.prompt_id} turn {turn}") & 0xFFFFFFFF)
    return _Job(talk, seed, prompt_ids), ""


def _room(llm: LLM, prompt_ids: Sequence[int]) -> int:
    return llm.engine.info.max_model_len - len(prompt_ids)
