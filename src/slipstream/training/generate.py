"""Answers of the target to prompts, through our own engine; what is there is not made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.engine.llm import LLM, Generation
from slipstream.errors import RequestError
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import Answer, append_answers, read_interrupted
from slipstream.training.conversations import Conversation, Message, hash_of

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


@dataclass(frozen=True, slots=True)
class _Job:
    conversation: Conversation
    turn: int
    temperature: float
    seed: int
    prompt_ids: tuple[int, ...]

    @property
    def key(self) -> str:
        return _key(self.conversation, self.turn, self.temperature)


def generate_answers(
    llm: LLM,
    conversations: Sequence[Conversation],
    plan: GenerationPlan,
    file: Path,
    on_done: Callable[[Answer | None], None],
) -> int:
    """Answer every turn of every conversation that `file` has no answer to, and append it there.

    Args:
        on_done: Told each answer when it is written, and None for one that was there.
    Returns: Turns that could not be answered, because the prompt leaves no room.
    """
    known = {answer.key: answer for answer in read_interrupted(file)}
    num_skipped = 0
    num_turns = max((len(item.turns) for item in conversations), default=0)
    for turn in range(num_turns):
        members = [item for item in conversations if len(item.turns) > turn]
        jobs = []
        for conversation in members:
            temperature = plan.temperature_of(conversation.prompt_id)
            if _key(conversation, turn, temperature) in known:
                on_done(None)
                continue
            job = _job(llm, conversation, turn, plan, known)
            if job is None:
                num_skipped += 1
            else:
                jobs.append(job)
        for answer in _run(llm, jobs, plan):
            append_answers(file, [answer])
            known[answer.key] = answer
            on_done(answer)
    return num_skipped


def _run(llm: LLM, jobs: Sequence[_Job], plan: GenerationPlan) -> Iterator[Answer]:
    params = [
        SamplingParams(
            temperature=job.temperature,
            max_tokens=min(plan.max_tokens, _room(llm, job.prompt_ids)),
            seed=job.seed,
        )
        for job in jobs
    ]
    for index, generation in llm.completed([job.prompt_ids for job in jobs], params):
        yield _answer(jobs[index], generation)


def _answer(job: _Job, generation: Generation) -> Answer:
    choice = generation.choices[0]
    return Answer(
        prompt_id=job.conversation.prompt_id,
        turn=job.turn,
        category=job.conversation.category,
        temperature=job.temperature,
        seed=job.seed,
        prompt_ids=job.prompt_ids,
        response_ids=tuple(choice.token_ids),
        finish="stop" if choice.finish_reason == "stop" else "length",
    )


def _job(
    llm: LLM,
    conversation: Conversation,
    turn: int,
    plan: GenerationPlan,
    known: Mapping[str, Answer],
) -> _Job | None:
    """None where an earlier turn has no answer or nothing fits behind the prompt."""
    temperature = plan.temperature_of(conversation.prompt_id)
    messages: list[Message] = []
    for index in range(turn + 1):
        messages += conversation.turns[index]
        if index < turn:
            earlier = known.get(_key(conversation, index, temperature))
            if earlier is None:
                return None
            text = llm.tokenizer.decode(earlier.response_ids)
            messages.append({"role": "assistant", "content": text})
    try:
        prompt_ids = tuple(llm.render(messages))
    except RequestError:  # the template does not take such messages
        return None
    if _room(llm, prompt_ids) < _MIN_ROOM:
        return None
    seed = derive(plan.seed, hash_of(f"{conversation.prompt_id} turn {turn}") & 0xFFFFFFFF)
    return _Job(conversation, turn, temperature, seed, prompt_ids)


def _room(llm: LLM, prompt_ids: Sequence[int]) -> int:
    return llm.engine.info.max_model_len - len(prompt_ids)


def _key(conversation: Conversation, turn: int, temperature: float) -> str:
    return f"{conversation.prompt_id} turn {turn} T {temperature:g}"
