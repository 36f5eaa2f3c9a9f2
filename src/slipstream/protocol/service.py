"""The bodies of the endpoints beside generation: models, tokens, health, version."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from slipstream.errors import InvalidRequestError
from slipstream.protocol.base import RequestModel, TokenId, WireModel, optional, translate
from slipstream.protocol.messages import Message


class ModelCard(WireModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["slipstream"] = "slipstream"
    max_model_len: int | None


class ModelList(WireModel):
    """Body of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(RequestModel):
    """Body of `/tokenize`: a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # Any: the template's
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give prompt or messages, one of them", param="prompt")
        return self


class TokenizeResponse(WireModel):
    """Tokens of a text."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = optional()


class DetokenizeRequest(RequestModel):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(WireModel):
    """Text of tokens, special ones included."""

    prompt: str


class Status(WireModel):
    """Body of `/health` and `/ready`."""

    status: str


class Version(WireModel):
    """Body of `/version`; `verification` says how drafts are checked, once the engine is there."""

    version: str
    model: str
    system_fingerprint: str | None
    verification: str | None


def read_tokenize_request(body: dict[str, Any]) -> TokenizeRequest:  # Any: JSON values
    """A validated tokenize request.

    Raises:
        InvalidRequestError: A field is unknown, missing or of the wrong type.
    """
    try:
        return TokenizeRequest.model_validate(body)
    except ValidationError as error:
        raise translate(error, TokenizeRequest) from None


def read_detokenize_request(body: dict[str, Any]) -> DetokenizeRequest:  # Any: JSON values
    """A validated detokenize request.

    Raises:
        InvalidRequestError: A field is unknown, missing or of the wrong type.
    """
    try:
        return DetokenizeRequest.model_validate(body)
    except ValidationError as error:
        raise translate(error, DetokenizeRequest) from None
