"""Acceptance of a trained drafter in the engine itself, alone, by category."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engine.llm import LLM
from slipstream.engine.messages import SpeculationStats
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from slipstream.training.conversations import Conversation, hash_of
from slipstream.training.settings import NetSettings


@dataclass(frozen=True, slots=True)
class ServedRow:
    """What a group of prompts gave.

    Attributes:
        label: Category, or "all".
        num_steps: Target passes that decoded.
        mean_acceptance_length: Tokens a pass, bonus included.
        shares: By depth, steps that kept a draft there, of all steps.
    """

    label: str
    num_prompts: int
    num_steps: int
    mean_acceptance_length: float
    shares: tuple[float, ...]


def drafter_settings(net: NetSettings, source: str) -> dict[str, Any]:  # Any: settings
    """Settings of an engine in which this drafter alone drafts, always to its full length.

    Args:
        source: Folder of the exported drafter.
    """
    kind = "dflash" if net.family == "dflash2" else net.family
    drafter = {"kind": kind, "source": source, "max_draft_len": net.max_draft_len}
    return {
        "speculation.drafters": [drafter],
        "speculation.controller": "fixed",
        "speculation.max_draft_len": net.max_draft_len,
        "speculation.max_draft_nodes": net.max_draft_len,
    }


def measure_served(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    on_done: Callable[[int], None],
) -> list[ServedRow]:
    """Answer the first turn of each prompt.

    Args:
        params: Of all prompts, but each has a seed of its own.
        on_done: Told one for each answer.
    Returns: All prompts, then each category.
    """
    prompts = [llm.render(conversation.turns[0]) for conversation in conversations]
    of_each = [
        SamplingParams(
            temperature=params.temperature,
            max_tokens=params.max_tokens,
            seed=derive(params.seed, hash_of(conversation.prompt_id) & 0xFFFFFFFF),
        )
        for conversation in conversations
    ]
    groups: dict[str, list[SpeculationStats]] = {"all": []}
    for index, generation in llm.completed(prompts, of_each):
        stats = generation.choices[0].speculation
        groups["all"].append(stats)
        groups.setdefault(conversations[index].category or "none", []).append(stats)
        on_done(1)
    return [_row(label, groups[label]) for label in ("all", *sorted(groups.keys() - {"all"}))]


def _row(label: str, stats: Sequence[SpeculationStats]) -> ServedRow:
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
        num_prompts=len(stats),
        num_steps=num_steps,
        mean_acceptance_length=1.0 + num_accepted / num_steps,
        shares=tuple(count / num_steps for count in kept),
    )
