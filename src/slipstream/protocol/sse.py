"""Server-sent events as the OpenAI API frames them."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"


def event(data: str) -> bytes:
    """One event. `data` is JSON, so it holds no line break."""
    return b"data: " + data.encode("utf-8") + b"\n\n"
