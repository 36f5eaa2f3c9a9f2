"""How far do 8-bit activations move the default model's distributions?

Recorded answers are read in one pass each, with activations in bfloat16 and in 8 bit; the rows that
give the answer's tokens are compared. Usage:

    python benchmarks/numerics/activations.py ANSWERS.jsonl.gz MODEL.gguf [--answers 16]

Each line of the file: `prompt_ids`, `response_ids`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slipstream.execution.batch import Branch, ForwardBatch
from slipstream.execution.runner import Runner
from slipstream.kernels.library import open_kernels
from slipstream.kernels.matrix import Activations
from slipstream.kv.storage import KvStorage
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint

MAX_LEN = 1024


def make_runner(path: Path, activations: Activations) -> Runner:
    """Keys and values in float32, so that products alone differ."""
    model = load_model(
        open_checkpoint(path), torch.bfloat16, kernels=open_kernels(), activations=activations
    )
    shape = model.hparams
    storage = KvStorage(
        MAX_LEN + 16, shape.num_layers, shape.kv_heads, shape.head_dim, torch.float32
    )
    return Runner(model, storage)


def log_probs(runner: Runner, tokens: list[int], first_row: int) -> Tensor:
    """[rows, vocab] float32 of the rows from `first_row` on, of one pass."""
    rows = np.arange(len(tokens))
    slots = rows + 16
    batch = ForwardBatch(
        tokens=np.array(tokens),
        positions=rows,
        slots=slots,
        branches=(Branch(rows, rows, slots),),
        logit_rows=rows[first_row:],
    )
    return runner.forward(batch).logits.log_softmax(-1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=16)
    arguments = parser.parse_args()
    exact_runner = make_runner(arguments.model, "bfloat16")
    moved_runner = make_runner(arguments.model, "int8")
    kl: list[Tensor] = []
    same: list[Tensor] = []
    with gzip.open(arguments.recorded, "rt") as lines:
        for line in islice(lines, arguments.answers):
            answer = json.loads(line)
            tokens = (answer["prompt_ids"] + answer["response_ids"])[:MAX_LEN]
            first_row = min(len(answer["prompt_ids"]), len(tokens)) - 1
            exact = log_probs(exact_runner, tokens, first_row)
            moved = log_probs(moved_runner, tokens, first_row)
            kl.append((exact.exp() * (exact - moved)).sum(-1).double())
            same.append(exact.argmax(-1) == moved.argmax(-1))
    rows, hits = torch.cat(kl), torch.cat(same).double()
    sys.stdout.write(
        f"{len(rows)} rows, mean KL {rows.mean():.6f}, 99th percentile "
        f"{rows.quantile(0.99):.5f}, same best token {hits.mean():.4f}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
