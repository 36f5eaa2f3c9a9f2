"""The answers of both generation endpoints, whole and in chunks.

Extensions of the OpenAI API: `seed`, `metrics`, `stop_reason`, `token_ids`, `prompt_token_ids`,
`prompt_logprobs`. Names and meanings of the last five are those of vLLM 0.33.
"""

from __future__ import annotations

from typing import Literal

from slipstream.protocol.base import WireModel, optional
from slipstream.protocol.request_metrics import RequestMetrics

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(WireModel):
    """Part of the usage."""

    cached_tokens: int


class Usage(WireModel):
    """Tokens that were read and written; a prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(WireModel):
    """One candidate at one prompt position."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class ChatTopLogprob(WireModel):
    """One alternative."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(ChatTopLogprob):
    """One output token."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(WireModel):
    """`logprobs` of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(WireModel):
    """The assistant's answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(WireModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = optional()
    metrics: RequestMetrics | None = optional()


class ChatCompletion(WireModel):
    """Body of a chat answer that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    seed: int
    prompt_token_ids: list[int] | None = optional()
    prompt_logprobs: PromptLogprobs | None = optional()
    metrics: RequestMetrics | None = optional()


class ChatDelta(WireModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = optional()
    content: str | None = optional()


class ChatChunkChoice(WireModel):
    """What a chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = optional()
    token_ids: list[int] | None = optional()
    metrics: RequestMetrics | None = optional()


class ChatChunk(WireModel):
    """One event of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    seed: int
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = optional()
    metrics: RequestMetrics | None = optional()


class CompletionLogprobs(WireModel):
    """`logprobs` of a completion choice; offsets count characters from the choice's start."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(WireModel):
    """One completion, or what a chunk adds to it (`finish_reason` is null until the last)."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = optional()
    prompt_token_ids: list[int] | None = optional()
    prompt_logprobs: PromptLogprobs | None = optional()
    metrics: RequestMetrics | None = optional()


class Completion(WireModel):
    """Body of a completion, or one event of a streamed one (`usage` is null until the last)."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str
    seed: int
    metrics: RequestMetrics | None = optional()
