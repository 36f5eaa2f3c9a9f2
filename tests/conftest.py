"""One thread per test process, engine children included: tests are small, and threads that wait for
each other on a busy machine are slow. Tests about threads ask for their own number."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
