"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from slipstream.observability.logs import configure_logs


@pytest.fixture(autouse=True)
def _restore_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("slipstream", "uvicorn")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def test_json_lines_hold_the_fields_as_values() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream=stream)
    logging.getLogger("slipstream.access").info("request", extra={"fields": {"status": 200}})
    entry = json.loads(stream.getvalue())
    assert entry["status"] == 200
    assert entry["message"] == "request"
    assert entry["level"] == "info"


def test_a_text_line_cannot_be_forged_with_line_breaks() -> None:
    stream = io.StringIO()
    configure_logs("info", "text", stream=stream)
    fields = {"path": "/a\n2030 ERROR fake", "status": 404}
    logging.getLogger("slipstream.access").info("one\ntwo", extra={"fields": fields})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'path="/a\\n2030 ERROR fake" status=404' in line


def test_a_text_line_cannot_steer_a_terminal() -> None:
    stream = io.StringIO()
    configure_logs("info", "text", stream=stream)
    nasty = "\x1b[31m\x00\x08\x7f\u202e\u2028"
    logger = logging.getLogger("slipstream.access")
    logger.info(nasty, extra={"fields": {"path": f"/x{nasty}"}})
    logger.error("failed", exc_info=ValueError(f"{nasty}\n2030 INFO forged"))
    text = stream.getvalue()
    assert "\n  2030 INFO forged" in text
    assert text.replace("\n", "").isprintable()
    assert r"/x\u001b[31m\u0000" in text
    assert "ValueError: \\x1b[31m" in text


def test_the_level_is_the_least_that_is_shown() -> None:
    stream = io.StringIO()
    configure_logs("warning", "text", stream=stream)
    logging.getLogger("slipstream.x").info("quiet")
    logging.getLogger("slipstream.x").warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_an_exception_comes_with_its_traceback() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream=stream)
    logging.getLogger("slipstream.x").error("failed", exc_info=ValueError("why"))
    assert "ValueError: why" in json.loads(stream.getvalue())["exception"]
