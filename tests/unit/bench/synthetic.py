"""Measurements whose numbers are chosen, so that every statistic can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.bench.results import (
    Answer,
    DraftCounts,
    GroupRun,
    Measurement,
    Mode,
    StepTimes,
    Turn,
)


@dataclass(frozen=True)
class Speed:
    """How one mode of a synthetic run goes: `num_tokens` tokens, the first of them after `ttft_s`.

    Of the steps after the first token `num_drafts` have a draft of `depth` tokens in a chain;
    `accepted` tokens are kept in all, taken as the first tokens of the drafts.
    """

    num_tokens: int = 101
    ttft_s: float = 0.0
    step_s: float = 0.01
    draft_share: float = 0.0
    num_drafts: int = 0
    depth: int = 1
    accepted: int = 0


def turn(speed: Speed, tokens: Sequence[int] | None = None) -> Turn:
    """One generation; tokens are all different unless given."""
    num_steps = speed.num_tokens - speed.accepted
    decode_s = (num_steps - 1) * speed.step_s
    return Turn(
        token_ids=tuple(tokens if tokens is not None else range(speed.num_tokens)),
        num_first_tokens=1,
        started_s=0.0,
        first_token_s=speed.ttft_s,
        finished_s=speed.ttft_s + decode_s,
        counts=DraftCounts(
            num_steps=num_steps,
            num_drafts=speed.num_drafts,
            num_draft_tokens=speed.num_drafts * speed.depth,
            num_accepted_tokens=speed.accepted,
            drafted_at=(speed.num_drafts,) * speed.depth if speed.num_drafts else (),
            accepted_at=(speed.accepted,) if speed.accepted else (),
        ),
    )


def run(speed: Speed, tokens: Sequence[int] | None = None) -> GroupRun:
    """One prompt alone."""
    done = turn(speed, tokens)
    total_s = done.e2e_s
    times = StepTimes(
        num_steps=done.counts.num_steps,
        num_rows=done.counts.num_steps + done.counts.num_draft_tokens,
        total_s=total_s,
        draft_s=speed.draft_share * done.decode_s,
        verify_s=total_s - speed.draft_share * done.decode_s,
    )
    return GroupRun((Answer((done,)),), times)


def measurement(
    off: Speed | None = None,
    on: Speed | None = None,
    *,
    unit: int = 0,
    category: str = "chat",
    sampling: str = "greedy",
    tokens: Sequence[int] | None = None,
    control: Speed | None = None,
) -> Measurement:
    """One prompt, off and on."""
    runs: dict[Mode, GroupRun] = {
        "off": run(off or Speed(), tokens),
        "on": run(on or Speed(), tokens),
    }
    if control is not None:
        runs["control"] = run(control, tokens)
    return Measurement(
        unit=unit,
        category=category,
        sampling=sampling,
        round_index=0,
        prompt_ids=(f"{category}/{unit}",),
        order=tuple(runs),
        runs=runs,
    )
