"""The bodies of `/v1/chat/completions` and `/v1/completions`, as far as they are honoured.

Ranges of sampling parameters are checked where the parameters live (`sampling.params`); here are
types, shapes and what fields say about each other.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, PlainValidator, ValidationError

from slipstream.errors import InvalidRequestError
from slipstream.protocol.base import Integer, RequestModel, TokenId, translate
from slipstream.protocol.field_check import honoured_fields
from slipstream.protocol.fields import Endpoint
from slipstream.protocol.messages import Message
from slipstream.protocol.values import (
    Prompt,
    parse_logit_bias,
    parse_prompt,
    parse_stop,
)

MAX_CHOICES = 128
MAX_ALTERNATIVES = 20

_Alternatives = Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)]
_Word = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    label: ClassVar[str] = "stream_options"
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SpeculationField(RequestModel):
    """The request extension `speculation`."""

    label: ClassVar[str] = "speculation"
    enabled: bool | None = None
    max_draft_len: Annotated[int, Field(ge=0, le=1024)] | None = None
    max_draft_nodes: Annotated[int, Field(ge=0, le=4096)] | None = None
    drafters: list[Annotated[str, Field(max_length=64)]] | None = None


class GenerationRequest(RequestModel):
    """What both endpoints share; the meaning of each field is in `protocol.fields`."""

    model: Annotated[str, Field(max_length=512)]
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], PlainValidator(parse_logit_bias)] = Field(
        default_factory=dict
    )
    bad_words: Annotated[list[_Word], Field(max_length=256)] = Field(default_factory=list)
    allowed_token_ids: list[TokenId] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool = False
    stop: Annotated[tuple[str, ...], PlainValidator(parse_stop)] = ()
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    logprobs_mode: Literal["raw", "processed"] = "raw"
    prompt_logprobs: _Alternatives | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    speculation: SpeculationField | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool = False
    top_logprobs: _Alternatives | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # Any: the template's

    @property
    def has_logprobs(self) -> bool:
        return self.logprobs

    @property
    def num_alternatives(self) -> int:
        return self.top_logprobs or 0


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(parse_prompt)]
    echo: bool = False
    logprobs: _Alternatives | None = None

    @property
    def has_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def num_alternatives(self) -> int:
        return self.logprobs or 0


_R = TypeVar("_R", bound=GenerationRequest)


def read_chat_request(body: dict[str, Any]) -> ChatRequest:  # Any: JSON values
    """A validated chat request.

    Raises:
        InvalidRequestError, UnsupportedParameterError: See `protocol.fields`.
    """
    request = _read(ChatRequest, body, "chat")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError(
            "top_logprobs needs logprobs: true beside it", param="top_logprobs"
        )
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        raise InvalidRequestError(
            f"max_tokens ({request.max_tokens}) and max_completion_tokens "
            f"({request.max_completion_tokens}) are one limit; give one of them",
            param="max_completion_tokens",
        )
    if request.max_tokens == 0:
        raise InvalidRequestError("max_tokens must be at least 1, got 0", param="max_tokens")
    _check_shared(request, num_choices=request.n)
    return request


def read_completion_request(body: dict[str, Any]) -> CompletionRequest:  # Any: JSON values
    """A validated completion request.

    Raises:
        InvalidRequestError, UnsupportedParameterError: See `protocol.fields`.
    """
    request = _read(CompletionRequest, body, "completions")
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequestError(
            "max_tokens must be at least 1, got 0; 0 is allowed with echo: true, to score a prompt",
            param="max_tokens",
        )
    _check_shared(request, num_choices=request.n * len(request.prompt))
    return request


def _read(kind: type[_R], body: dict[str, Any], endpoint: Endpoint) -> _R:
    fields = honoured_fields(body, endpoint)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise translate(error, kind) from None


def _check_shared(request: ChatRequest | CompletionRequest, *, num_choices: int) -> None:
    if num_choices > MAX_CHOICES:
        raise InvalidRequestError(
            f"n times the number of prompts must be at most {MAX_CHOICES}, got {num_choices}",
            param="n",
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "stream_options needs stream: true beside it", param="stream_options"
        )
    if request.return_tokens_as_token_ids and not request.has_logprobs:
        raise InvalidRequestError(
            "return_tokens_as_token_ids needs logprobs beside it",
            param="return_tokens_as_token_ids",
        )
    wants_any = request.has_logprobs or request.prompt_logprobs is not None
    if request.logprobs_mode != "raw" and not wants_any:
        raise InvalidRequestError(
            "logprobs_mode needs logprobs or prompt_logprobs beside it", param="logprobs_mode"
        )
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError(
            "prompt_logprobs cannot be streamed; leave out stream", param="prompt_logprobs"
        )
