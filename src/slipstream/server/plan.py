"""From a validated request to what the engine is asked: text to tokens, defaults, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.engine.messages import EngineInfo, Submit
from slipstream.errors import (
    InvalidRequestError,
    TokenizerError,
    UnsupportedParameterError,
)
from slipstream.protocol.messages import Message
from slipstream.protocol.requests import ChatRequest, CompletionRequest
from slipstream.protocol.service import TokenizeRequest
from slipstream.server.context import Service
from slipstream.server.sampling_fields import (
    COMPLETIONS_MAX_TOKENS,
    check_queue_holds,
    check_token_ids,
    output_budget,
    sampling_params,
    speculation_options,
)

_SEED_DRAW_BITS = 53  # survives clients whose JSON numbers are doubles
_INLINE_BODY_BYTES = 16_384

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """One HTTP request, ready for the engine.

    Attributes:
        response_id: `chatcmpl-...` or `cmpl-...`; the engine's request ids begin with it.
        created: Unix seconds.
        seed: As given, or as drawn.
        submits: One per prompt.
        echo_texts: Text of each prompt, when the answer repeats it.
        is_score_only: `max_tokens` was 0: the one token that the engine draws is dropped.
        deadline_s: Seconds until the API process gives up.
    """

    response_id: str
    created: int
    model: str
    fingerprint: str
    seed: int
    n: int
    submits: tuple[Submit, ...]
    echo_texts: tuple[str, ...] = field(default=())
    is_score_only: bool = False
    deadline_s: float | None = None


async def off_loop(work: Callable[[], _T], num_bytes: int) -> _T:
    """Run `work` here if the request was small, else in a thread: reading it takes time."""
    if num_bytes <= _INLINE_BODY_BYTES:
        return work()
    return await asyncio.to_thread(work)


def plan_chat(service: Service, request: ChatRequest) -> Plan:
    """Render, tokenise and check a chat request.

    Raises:
        RequestError: It cannot be served.
    """
    info = service.ready_info()
    service.check_model(request.model)
    prompt = chat_tokens(
        service,
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        add_special=bool(request.add_special_tokens),
        template_kwargs=request.chat_template_kwargs,
    )
    asked = request.max_completion_tokens or request.max_tokens
    return _plan(service, info, request, [tuple(prompt)], (asked, info.max_model_len))


def plan_completion(service: Service, request: CompletionRequest) -> Plan:
    """Tokenise and check a completion request.

    Raises:
        RequestError: It cannot be served.
    """
    info = service.ready_info()
    service.check_model(request.model)
    add_special = request.add_special_tokens is not False
    prompts: list[tuple[int, ...]] = []
    texts: list[str] = []
    for prompt in request.prompt:
        if isinstance(prompt, str):
            prompts.append(tuple(encode(service, prompt, add_special=add_special)))
        else:
            check_token_ids(prompt, info.vocab_size, "prompt")
            prompts.append(prompt)
        if request.echo:
            given = prompt if isinstance(prompt, str) else None
            texts.append(service.tokenizer.decode(prompts[-1]) if given is None else given)
    limits = (request.max_tokens, COMPLETIONS_MAX_TOKENS)
    return _plan(service, info, request, prompts, limits, tuple(texts))


def encode(service: Service, text: str, *, add_special: bool) -> list[int]:
    """Tokens of `text`.

    Raises:
        InvalidRequestError: The tokenizer has no way to write it.
    """
    try:
        return service.tokenizer.encode(text, add_special=add_special)
    except TokenizerError as error:
        raise InvalidRequestError(error.message, param="prompt") from error


def chat_tokens(
    service: Service,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    add_special: bool,
    template_kwargs: Mapping[str, Any],  # Any: the template's own
) -> list[int]:
    """Tokens of a conversation.

    Raises:
        UnsupportedParameterError: The model has no chat template.
        InvalidRequestError: The template refuses the messages or an argument.
    """
    if service.template is None:
        raise UnsupportedParameterError(
            "this model has no chat template; use /v1/completions, or set model.chat_template",
            param="messages",
        )
    reserved = sorted({"messages", "tools", "add_generation_prompt"} & set(template_kwargs))
    if reserved:
        raise InvalidRequestError(
            f"chat_template_kwargs must not hold {reserved[0]}, which is a field of the request",
            param="chat_template_kwargs",
        )
    try:
        text = service.template.render(
            [message.as_template_input() for message in messages],
            add_generation_prompt=add_generation_prompt,
            **template_kwargs,
        )
    except TokenizerError as error:
        raise InvalidRequestError(
            f"the chat template refuses these messages: {error.message}", param="messages"
        ) from error
    return encode(service, text, add_special=add_special)


def tokenize(service: Service, request: TokenizeRequest) -> list[int]:
    """Tokens of a tokenize request.

    Raises:
        InvalidRequestError, UnsupportedParameterError: See `encode` and `chat_tokens`.
    """
    if request.messages is not None:
        return chat_tokens(
            service,
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            add_special=bool(request.add_special_tokens),
            template_kwargs=request.chat_template_kwargs,
        )
    add_special = request.add_special_tokens is not False
    return encode(service, request.prompt or "", add_special=add_special)


def _plan(
    service: Service,
    info: EngineInfo,
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[tuple[int, ...]],
    limits: tuple[int | None, int],
    echo_texts: tuple[str, ...] = (),
) -> Plan:
    """`limits` are the `max_tokens` that was asked for and its default."""
    asked, default = limits
    seed = request.seed
    if seed is None:
        seed = service.rng.getrandbits(_SEED_DRAW_BITS)
    response_id = service.new_id("chatcmpl" if isinstance(request, ChatRequest) else "cmpl")
    check_queue_holds(request.n, len(prompts), info.max_queue_len)
    speculation = speculation_options(request.speculation, info)
    submits = []
    for i, prompt in enumerate(prompts):
        budget = output_budget(len(prompt), asked, default, info.max_model_len, request)
        params = sampling_params(
            request,
            max_tokens=budget,
            seed=seed,
            vocab_size=info.vocab_size,
        )
        submits.append(
            Submit(
                request_id=response_id if len(prompts) == 1 else f"{response_id}-{i}",
                prompt=prompt,
                params=params,
                n=request.n,
                speculation=speculation,
                cache_salt=request.cache_salt or "",
                priority=request.priority,
                timeout_s=request.timeout,
            )
        )
    return Plan(
        response_id=response_id,
        created=int(service.clock.wall()),
        model=service.model,
        fingerprint=info.fingerprint,
        seed=seed,
        n=request.n,
        submits=tuple(submits),
        echo_texts=echo_texts,
        is_score_only=asked == 0,
        deadline_s=_deadline(request.timeout, service.config.request_timeout_s),
    )


def _deadline(asked: float | None, limit: float | None) -> float | None:
    given = [seconds for seconds in (asked, limit) if seconds is not None]
    return min(given) if given else None
