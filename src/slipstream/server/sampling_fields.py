"""Request fields to the engine's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from slipstream.engine.messages import EngineInfo, SpeculationOptions
from slipstream.errors import ContextLengthError, InvalidRequestError
from slipstream.protocol.errors import shown
from slipstream.protocol.requests import ChatRequest, CompletionRequest, SpeculationField
from slipstream.sampling.params import SEED_BITS, SamplingParams

COMPLETIONS_MAX_TOKENS = 16  # the OpenAI API's default for /v1/completions

_Number = TypeVar("_Number", int, float)
AnyRequest = ChatRequest | CompletionRequest


def output_budget(
    num_prompt_tokens: int, asked: int | None, default: int, context: int, request: AnyRequest
) -> int:
    """Most output tokens: what was asked for, or `default` as far as the context goes.

    Args:
        request: Its own field names stand in the errors.

    Raises:
        InvalidRequestError: The prompt is empty.
        ContextLengthError: Prompt, or prompt plus `asked`, is longer than `context`; one output
            token must always fit.
    """
    prompt_field = "messages" if isinstance(request, ChatRequest) else "prompt"
    if num_prompt_tokens == 0:
        raise InvalidRequestError(
            "the prompt is empty; give at least one token", param=prompt_field
        )
    room = context - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens; this model's context is {context} tokens, "
            "of which at least 1 is left for the output",
            param=prompt_field,
        )
    if asked is None:
        return min(default, room)
    if asked > room:
        field = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
        raise ContextLengthError(
            f"the prompt's {num_prompt_tokens} tokens and {field} = {asked} make "
            f"{num_prompt_tokens + asked}; this model's context is {context} tokens",
            param=field,
        )
    return max(asked, 1)


def sampling_params(
    request: ChatRequest | CompletionRequest,
    *,
    max_tokens: int,
    seed: int,
    vocab_size: int,
) -> SamplingParams:
    """The engine's parameters of a request, whose token ids are checked here.

    Raises:
        InvalidRequestError: A value is out of range, or a token id is not in the vocabulary.
    """
    for field, ids in (
        ("logit_bias", request.logit_bias),
        ("stop_token_ids", request.stop_token_ids),
        ("allowed_token_ids", request.allowed_token_ids or ()),
    ):
        check_token_ids(ids, vocab_size, field)
    num_prompt_alternatives = _prompt_alternatives(request)
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=max(_or(request.top_k, 0), 0),
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias,
        bad_words=tuple(request.bad_words),
        allowed_token_ids=(
            None if request.allowed_token_ids is None else tuple(request.allowed_token_ids)
        ),
        max_tokens=max_tokens,
        min_tokens=_or(request.min_tokens, 0),
        ignore_eos=request.ignore_eos,
        stop=request.stop,
        stop_token_ids=tuple(request.stop_token_ids),
        include_stop=request.include_stop_str_in_output,
        seed=seed % 2**SEED_BITS,
        logprobs=request.has_logprobs,
        top_logprobs=max(request.num_alternatives, num_prompt_alternatives or 0),
        prompt_logprobs=num_prompt_alternatives is not None,
        logprobs_mode=request.logprobs_mode,
    )


def check_queue_holds(n: int, num_prompts: int, max_queue_len: int) -> None:
    """Refuse more choices than may wait: whether they all got places would be chance.

    Raises:
        InvalidRequestError: More choices than the queue has places.
    """
    if n * num_prompts > max_queue_len:
        raise InvalidRequestError(
            f"n times the number of prompts is {n * num_prompts}, and this server's queue holds "
            f"{max_queue_len} (scheduler.max_queue_len); ask for fewer at a time",
            param="n" if n > 1 else "prompt",
        )


def speculation_options(field: SpeculationField | None, info: EngineInfo) -> SpeculationOptions:
    """The engine's form of the extension `speculation`; a bound of 0 switches it off.

    Raises:
        InvalidRequestError: A drafter that this server does not have, or `enabled` beside what
            switches it off.
    """
    if field is None:
        return SpeculationOptions()
    for name in field.drafters or ():
        if name not in info.drafters:
            known = ", ".join(info.drafters) or "none"
            raise InvalidRequestError(
                f"speculation.drafters: there is no drafter {shown(name)}; there are: {known}",
                param="speculation",
            )
    is_off = 0 in (field.max_draft_len, field.max_draft_nodes) or field.drafters == []
    if is_off and field.enabled:
        raise InvalidRequestError(
            "speculation: enabled is true, but a bound of 0 or an empty list of drafters switches "
            "it off; leave out one of them",
            param="speculation",
        )
    return SpeculationOptions(
        enabled=False if is_off else field.enabled,
        max_draft_len=field.max_draft_len or None,
        max_draft_nodes=field.max_draft_nodes or None,
        drafters=tuple(field.drafters) if field.drafters else None,
    )


def check_token_ids(ids: Iterable[int], vocab_size: int, field: str) -> None:
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequestError: Names the first such id.
    """
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{field}: token id {token_id} is not in the vocabulary, which has "
                f"{vocab_size} tokens",
                param=field,
            )


def _or(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value


def _prompt_alternatives(request: ChatRequest | CompletionRequest) -> int | None:
    """Alternatives per prompt token; None when prompt logprobs are not needed."""
    asked = request.prompt_logprobs
    if isinstance(request, CompletionRequest) and request.echo and request.logprobs is not None:
        return max(asked or 0, request.logprobs)
    return asked
