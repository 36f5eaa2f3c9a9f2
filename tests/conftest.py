"""One thread per test process, engine children included: tests are small, and threads that wait for
each other on a busy machine are slow. Tests about threads ask for their own number."""

from __future__ import annotations

import logging
import os
import sys
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


@pytest.fixture(autouse=True)
def unchanged_floats() -> Iterator[None]:
    """No test leaves a process whose numbers below the smallest normal one are 0."""
    yield
    assert sys.float_info.min / 2.0 > 0.0, "something told the processor to flush to zero"


def _threads_given_back() -> Iterator[None]:
    """Building an engine sets the number of torch's threads for the whole process."""
    torch = sys.modules.get("torch")  # a test that never needed it does not import it here
    before = None if torch is None else torch.get_num_threads()
    yield
    if torch is not None:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def unchanged_threads() -> Iterator[None]:
    """A test gives torch's threads back as it found them."""
    yield from _threads_given_back()


@pytest.fixture(scope="module", autouse=True)
def unchanged_threads_of_module() -> Iterator[None]:
    """So does a module, whose own fixtures may build engines."""
    yield from _threads_given_back()


@pytest.fixture
def one_thread(unchanged_threads: None) -> None:
    """One thread of torch, whatever the environment says."""
    import torch

    torch.set_num_threads(1)
