"""Measurements at start: how long a pass takes by its rows, and how much memory it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slipstream.clock import Clock
from slipstream.execution.batch import Branch, ForwardBatch
from slipstream.execution.runner import Runner
from slipstream.kv.states import StateSpan
from slipstream.models.hparams import Hparams

CONTEXT_LEN = 128
NUM_ROUNDS = 3
NUM_WIDE_ROUNDS = 2
WIDE_ROWS = 16
NUM_IN_A_ROW = 2  # of one size: the pass after one of another size runs colder than steps do
FLOAT32_BYTES = 4


def profile_steps(runner: Runner, row_counts: Sequence[int], clock: Clock) -> dict[int, float]:
    """Seconds of a decoding pass by its rows, at a short context.

    Runs on the scratch slot only, so no request's cache is touched.
    """
    batches = {num_rows: _scratch_batch(num_rows) for num_rows in row_counts}
    seconds = dict.fromkeys(batches, math.inf)
    for index in range(NUM_ROUNDS):  # round by round, so that a busy moment falls on all sizes
        for num_rows, batch in batches.items():
            # Wide passes take most of the time, and are long enough to outlast short disturbances.
            is_wide = num_rows >= WIDE_ROWS
            if is_wide and index >= NUM_WIDE_ROUNDS:
                continue
            for _ in range(1 if is_wide else NUM_IN_A_ROW):
                started_s = clock.now()
                runner.forward(batch)
                # Other work on the machine only ever adds.
                seconds[num_rows] = min(seconds[num_rows], clock.now() - started_s)
    return seconds


def workspace_bytes(hparams: Hparams, max_rows: int, max_logit_rows: int) -> int:
    """Upper estimate of what the widest pass holds beside weights and KV.

    Args:
        max_rows: Most rows of a pass.
        max_logit_rows: Most of them whose logits are wanted at once.
    """
    widest = max(
        hparams.hidden_size * 6,
        hparams.intermediate_size * 3,
        (hparams.num_heads + 2 * hparams.kv_heads) * hparams.head_dim * 3,
    )
    activations = max_rows * widest
    logits = 2 * max_logit_rows * hparams.vocab_size
    scores = max_rows * hparams.num_heads * 1024 * 2
    return FLOAT32_BYTES * (activations + logits + scores)


def _scratch_batch(num_rows: int) -> ForwardBatch:
    """One chain of `num_rows` rows behind a context that lies wholly in the scratch slot."""
    positions = np.arange(CONTEXT_LEN, CONTEXT_LEN + num_rows, dtype=np.int64)
    rows = np.arange(num_rows, dtype=np.int64)
    scratch = np.zeros(CONTEXT_LEN + num_rows, dtype=np.int64)
    return ForwardBatch(
        tokens=np.zeros(num_rows, dtype=np.int64),
        positions=positions,
        slots=scratch[:num_rows],
        branches=(Branch(rows, positions, scratch),),
        logit_rows=rows,
        spans=(StateSpan(first_row=0, num_known=0, num_drafts=num_rows),),
    )
