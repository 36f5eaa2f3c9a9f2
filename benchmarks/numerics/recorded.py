"""Recorded answers, and how far one way of computing them moves distributions from another."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slipstream.execution.batch import Branch, ForwardBatch
from slipstream.execution.runner import Runner
from slipstream.models.decoder import Model

MAX_LEN = 1024
_FIRST_SLOT = 16  # the page before it is scratch


def read_arguments(description: str | None) -> argparse.Namespace:
    """`recorded`, `model`, `answers`: see a script's usage."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=16)
    return parser.parse_args()


def make_runner(model: Model, kv_dtype: torch.dtype) -> Runner:
    """A runner with room for one answer."""
    shape = model.hparams
    storage = shape.kv_shape.storage(MAX_LEN + _FIRST_SLOT, kv_dtype)
    return Runner(model, storage)


@dataclass(frozen=True)
class Answer:
    """Tokens of a prompt and its answer; the answer's come from the rows from `first_row` on."""

    tokens: list[int]
    first_row: int

    def log_probs(self, runner: Runner) -> Tensor:
        """[rows, vocab] float32, of one pass."""
        rows = np.arange(len(self.tokens))
        slots = rows + _FIRST_SLOT
        batch = ForwardBatch(
            tokens=np.array(self.tokens),
            positions=rows,
            slots=slots,
            branches=(Branch(rows, rows, slots),),
            logit_rows=rows[self.first_row :],
        )
        return runner.forward(batch).logits.log_softmax(-1)


def read_answers(path: Path, count: int) -> Iterator[Answer]:
    """The first `count` lines of a file, each cut to `MAX_LEN` tokens."""
    with gzip.open(path, "rt") as lines:
        for line in islice(lines, count):
            answer = json.loads(line)
            tokens = (answer["prompt_ids"] + answer["response_ids"])[:MAX_LEN]
            yield Answer(tokens, min(len(answer["prompt_ids"]), len(tokens)) - 1)


@dataclass
class Divergence:
    """Kullback-Leibler divergences and equal best tokens of rows, from exact log-probabilities."""

    kl: list[Tensor] = field(default_factory=list)
    same: list[Tensor] = field(default_factory=list)

    def add(self, exact: Tensor, got: Tensor) -> None:
        """Count rows, [rows, vocab] each."""
        self.kl.append((exact.exp() * (exact - got)).sum(-1).double())
        self.same.append(got.argmax(-1) == exact.argmax(-1))

    def __str__(self) -> str:
        rows, hits = torch.cat(self.kl), torch.cat(self.same).double()
        return (
            f"{len(rows)} rows, mean KL {rows.mean():.6f}, 99th percentile "
            f"{rows.quantile(0.99):.5f}, same best token {hits.mean():.4f}"
        )
