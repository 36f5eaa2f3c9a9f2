"""Log lines: for people (`text`) or one JSON object each (`json`).

Structured values travel in `extra={"fields": {...}}`. Prompt and output text is never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {  # Any: JSON values
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message key=value ...`, on one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_plain(value)}" for key, value in _fields(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {record.getMessage()}"
        line = _printable(line) + fields
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            # Indented, so that no line of it looks like a record.
            line = "\n  ".join((line, *map(_printable, trace.split("\n"))))
        return line


def configure_logs(level: str, log_format: LogFormat, *, stream: TextIO | None = None) -> None:
    """Send the records of all `slipstream` and `uvicorn` loggers to `stream` (stderr).

    Called once per process, by its entry point.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name in ("slipstream", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:  # Any: JSON values
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _plain(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(c.isspace() or c == '"' for c in text)
    return text if text and is_plain else json.dumps(text)


def _printable(text: str) -> str:
    """Escapes what could end the line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
