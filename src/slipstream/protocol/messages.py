"""Chat messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, model_validator

from slipstream.errors import InvalidRequestError, UnsupportedParameterError
from slipstream.protocol.base import RequestModel
from slipstream.protocol.errors import shown

_TOOL_FIELDS = ("tool_calls", "tool_call_id", "function_call", "audio")
_ROLES = ("system", "developer", "user", "assistant")


def parse_content(value: object) -> str:
    """Text, or a list of text parts, which are joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(
            f"a message's content must be a string or a list of text parts, got {shown(value)}",
            param="messages",
        )
    return "\n".join(_part_text(part) for part in value)


def _part_text(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_audio", "file", "video_url", "audio_url"):
        raise UnsupportedParameterError(
            f"this server reads text only, got a content part of type {shown(kind)}",
            param="messages",
        )
    if (
        not isinstance(part, dict)
        or kind != "text"
        or set(part) != {"type", "text"}
        or not isinstance(part["text"], str)
    ):
        raise InvalidRequestError(
            'a content part must be {"type": "text", "text": "..."}, got ' + shown(part),
            param="messages",
        )
    return part["text"]


class Message(RequestModel):
    """One message; `developer` is an alias of `system`, which is what templates know."""

    label: ClassVar[str] = "a message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(parse_content)]
    name: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_tools(cls, data: Any) -> Any:  # Any: JSON, before validation
        if not isinstance(data, dict):
            return data
        role = data.get("role")
        if role in ("tool", "function"):
            raise UnsupportedParameterError(
                f"messages of role {shown(role)} are not supported: this server does no tool "
                f"calling; roles are {', '.join(_ROLES)}",
                param="messages",
            )
        asked = [name for name in _TOOL_FIELDS if data.get(name) not in (None, [])]
        if asked:
            raise UnsupportedParameterError(
                f"{asked[0]} in a message is not supported: this server does no tool calling",
                param="messages",
            )
        ignored = (*_TOOL_FIELDS, "refusal", "annotations")
        empty = [name for name in ignored if name in data and data[name] in (None, [])]
        return {name: value for name, value in data.items() if name not in empty}

    def as_template_input(self) -> dict[str, str]:
        """What the chat template sees."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        return message
