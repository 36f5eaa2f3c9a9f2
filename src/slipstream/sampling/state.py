"""What a row's distribution may remember of the tokens before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.sampling.bad_words import BadWords
from slipstream.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Immutable memory of the sampler; `advance` gives the next one.

    Attributes:
        output_counts: Token id -> how often it was drawn; kept only for penalties.
        prompt_tokens: Distinct tokens of the prompt (shared between states); kept only for the
            repetition penalty.
        bad_words: Shared between states; None where the parameters have none.
        tail: What the end of the text, prompt included, has begun of a bad word.
        num_output: How many tokens were drawn.
    """

    output_counts: Mapping[int, int] = field(default_factory=dict)
    prompt_tokens: frozenset[int] = frozenset()
    bad_words: BadWords | None = None
    tail: bytes = b""
    num_output: int = 0


def initial_state(
    params: SamplingParams, prompt: Sequence[int], bad_words: BadWords | None = None
) -> SamplingState:
    """State before the first output token; remembers only what `params` will ask for.

    The prompt's end counts as the beginning of a bad word as the output's does: an answer that is
    cut and sent back as prompt goes on as it would have.

    Args:
        bad_words: Made from `params.bad_words`; needed where there are any.
    Raises:
        ValueError: It is missing.
    """
    if params.bad_words and bad_words is None:
        raise ValueError("parameters with bad_words need them prepared for the vocabulary")
    return SamplingState(
        prompt_tokens=frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset(),
        bad_words=bad_words,
        tail=b"" if bad_words is None else bad_words.tail_of(prompt),
    )


def advance(params: SamplingParams, state: SamplingState, token: int) -> SamplingState:
    """The state after `token` was drawn. Pure: verification may walk it and throw it away."""
    if not params.needs_state:
        return state
    words, counts = state.bad_words, state.output_counts
    if params.has_penalties:
        counts = {**counts, token: counts.get(token, 0) + 1}
    return SamplingState(
        output_counts=counts,
        prompt_tokens=state.prompt_tokens,
        bad_words=words,
        tail=b"" if words is None else words.tail_after(state.tail, token),
        num_output=state.num_output + 1,
    )
