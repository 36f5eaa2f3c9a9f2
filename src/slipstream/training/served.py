"""Acceptance of a trained drafter in the engine itself, alone, by category."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine.llm import LLM
from slipstream.engine.messages import SpeculationStats
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from slipstream.training.conversations import Conversation, Message, hash_of

_NUM_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class ServedRow:
    """What a group of prompts gave.

    Attributes:
        label: Category, or "all".
        num_turns: Answers to its prompts' turns.
        num_steps: Target passes that decoded.
        mean_acceptance_length: Tokens a pass, bonus included.
        shares: By depth, steps that kept a draft there, of all steps.
    """

    label: str
    num_prompts: int
    num_turns: int
    num_steps: int
    mean_acceptance_length: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ServedNet:
    """A net as an engine is told of it.

    Attributes:
        kind, source: As in the configuration.
        draft_len: That it was trained for, or that servers ask for.
    """

    kind: str
    source: str
    draft_len: int


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What is drafted in each step.

    Attributes:
        max_draft_len: Longest branch; None is what the drafter was trained for.
        num_children: Tokens behind each node; 1 is a chain.
        num_nodes: Of the whole draft; None is as many as one branch has, times the children.
        beside: Kinds of other drafters whose drafts are merged with its own.
    """

    max_draft_len: int | None = None
    num_children: int = 1
    num_nodes: int | None = None
    beside: tuple[str, ...] = ()


def drafter_settings(net: ServedNet, shape: DraftShape) -> dict[str, Any]:
    """Settings of an engine in which this drafter drafts in every step, as far as it may.

    Returns: Any: a setting's value has the setting's type.
    """
    max_draft_len = shape.max_draft_len or net.draft_len
    num_nodes = shape.num_nodes or max_draft_len * shape.num_children
    drafter = {
        "kind": net.kind,
        "source": net.source,
        "max_draft_len": max_draft_len,
        "min_score": 0.0,
    }
    if shape.num_children > 1:  # whoever drafts chains alone has no such setting
        drafter["num_children"] = shape.num_children
    return {
        "speculation.drafters": [*({"kind": other} for other in shape.beside), drafter],
        "speculation.controller": "fixed",
        "speculation.max_draft_len": max_draft_len,
        "speculation.max_draft_nodes": num_nodes,
        "scheduler.max_num_requests": _NUM_REQUESTS,
        # A step that is full would leave requests without drafts.
        "scheduler.max_step_tokens": max(512, _NUM_REQUESTS * (num_nodes + 1)),
    }


def measure_served(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    on_done: Callable[[int], None],
) -> list[ServedRow]:
    """Answer every turn of each prompt: a turn is sent with the answers to those before it.

    Args:
        params: Of all prompts, but each has a seed of its own.
        on_done: Told one for each turn, also of those that leave no room for an answer.
    Returns: All prompts, then each category.
    """
    groups: dict[str, list[_Answered]] = {"all": []}
    talks = [_Talk(conversation) for conversation in conversations]
    for turn in range(max((len(talk.conversation.turns) for talk in talks), default=0)):
        asked: list[tuple[_Talk, list[int], SamplingParams]] = []
        for talk in talks:
            if turn >= len(talk.conversation.turns):
                continue
            prompt = talk.ask(llm, turn)
            room = llm.engine.info.max_model_len - len(prompt)
            if talk.is_cut or room < 1:
                talk.is_cut = True
                on_done(1)
                continue
            asked.append((talk, prompt, _params_of(talk.conversation, turn, params, room)))
        prompts, of_each = [item[1] for item in asked], [item[2] for item in asked]
        for index, generation in llm.completed(prompts, of_each):
            talk, choice = asked[index][0], generation.choices[0]
            talk.messages.append({"role": "assistant", "content": choice.text})
            answered = _Answered(talk.conversation.prompt_id, choice.speculation)
            groups["all"].append(answered)
            groups.setdefault(talk.conversation.category or "none", []).append(answered)
            on_done(1)
    return [_row(label, groups[label]) for label in ("all", *sorted(groups.keys() - {"all"}))]


@dataclass(frozen=True, slots=True)
class _Answered:
    """One turn."""

    prompt_id: str
    stats: SpeculationStats


@dataclass(slots=True)
class _Talk:
    """A conversation on its way.

    Attributes:
        messages: All so far.
        is_cut: Whether a turn left no room, so that those behind it cannot be asked.
    """

    conversation: Conversation
    messages: list[Message] = field(default_factory=list)
    is_cut: bool = False

    def ask(self, llm: LLM, turn: int) -> list[int]:
        """The next prompt."""
        self.messages += self.conversation.turns[turn]
        return llm.render(self.messages)


def _params_of(
    conversation: Conversation, turn: int, params: SamplingParams, room: int
) -> SamplingParams:
    name = conversation.prompt_id if turn == 0 else f"{conversation.prompt_id} turn {turn}"
    return SamplingParams(
        temperature=params.temperature,
        max_tokens=min(params.max_tokens, room),
        seed=derive(params.seed, hash_of(name) & 0xFFFFFFFF),
    )


def _row(label: str, answered: Sequence[_Answered]) -> ServedRow:
    stats = [item.stats for item in answered]
    num_steps = max(1, sum(item.num_steps for item in stats))
    num_accepted = sum(item.num_accepted_tokens for item in stats)
    depth = max((len(item.num_accepted_tokens_per_pos) for item in stats), default=0)
    kept = [
        sum(
            item.num_accepted_tokens_per_pos[at]
            for item in stats
            if at < len(item.num_accepted_tokens_per_pos)
        )
        for at in range(depth)
    ]
    return ServedRow(
        label=label,
        num_prompts=len({item.prompt_id for item in answered}),
        num_turns=len(stats),
        num_steps=num_steps,
        mean_acceptance_length=1.0 + num_accepted / num_steps,
        shares=tuple(count / num_steps for count in kept),
    )
