"""OpenAI chat messages in the shape that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.errors import InvalidRequestError

Message = Mapping[str, Any]  # parsed JSON; what is used of it is checked here


def prepare_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages with `content` as text and tool arguments as objects.

    A list of text parts is joined by line breaks; a missing content is the empty text.

    Raises:
        InvalidRequestError: A message has no role, a part that is not text, or tool arguments that
            are no JSON object.
    """
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    return [_prepare(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _prepare(message: Message, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _refusal(f"{place} must be an object with a role")
    prepared = {**message, "content": _content_text(message.get("content"), place)}
    if message.get("tool_calls"):
        prepared["tool_calls"] = [_prepare_call(call, place) for call in message["tool_calls"]]
    return prepared


def _content_text(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _refusal(f"{place}.content must be a text or a list of parts, got {content!r:.40}")
    return "\n".join(
        _part_text(part, f"{place}.content[{index}]") for index, part in enumerate(content)
    )


def _part_text(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text":
        raise _refusal(
            f'{place} is of the type "{kind}"; this model reads text only, as '
            '{"type": "text", "text": "..."}'
        )
    if not isinstance(text, str):
        raise _refusal(f"{place}.text must be a text, got {text!r:.40}")
    return text


def _prepare_call(call: Any, place: str) -> Any:
    """Templates write the arguments out themselves, so they take an object, not its JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise _refusal(
            f"{place}.tool_calls: the arguments of {function.get('name')!r} must be a JSON object, "
            f"got {function['arguments']!r:.40}"
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")
