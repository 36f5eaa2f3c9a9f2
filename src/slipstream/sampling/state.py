"""What a row's distribution may remember of the tokens before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Immutable memory of the sampler; `advance` gives the next one.

    Attributes:
        output_counts: Token id -> how often it was drawn; kept only for penalties.
        prompt_tokens: Distinct tokens of the prompt (shared between states); kept only for the
            repetition penalty.
        recent: The last tokens, prompt included, as many as the longest bad word needs.
        num_output: How many tokens were drawn.
    """

    output_counts: Mapping[int, int] = field(default_factory=dict)
    prompt_tokens: frozenset[int] = frozenset()
    recent: tuple[int, ...] = ()
    num_output: int = 0


def initial_state(params: SamplingParams, prompt: Sequence[int]) -> SamplingState:
    """State before the first output token; remembers only what `params` will ask for."""
    window = _window(params)
    return SamplingState(
        prompt_tokens=frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset(),
        recent=tuple(prompt[-window:]) if window else (),
    )


def advance(params: SamplingParams, state: SamplingState, token: int) -> SamplingState:
    """The state after `token` was drawn. Pure: verification may walk it and throw it away."""
    if not params.needs_state:
        return state
    window = _window(params)
    counts = state.output_counts
    if params.has_penalties:
        counts = {**counts, token: counts.get(token, 0) + 1}
    return SamplingState(
        output_counts=counts,
        prompt_tokens=state.prompt_tokens,
        recent=(*state.recent, token)[-window:] if window else (),
        num_output=state.num_output + 1,
    )


def _window(params: SamplingParams) -> int:
    return max((len(word) - 1 for word in params.bad_words), default=0)
