"""One thread per test process, engine children included: tests are small, and threads that wait for
each other on a busy machine are slow. Tests about threads ask for their own number."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def unchanged_loggers() -> Iterator[None]:
    """An entry point sets up the loggers of its process; tests share one and get it back."""
    loggers = [logging.getLogger(name) for name in ("slipstream", "uvicorn")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
