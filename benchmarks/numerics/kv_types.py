"""How far does the type of stored keys and values move the default model's distributions?

Recorded answers are read in one pass each, with keys and values in every type; the rows that give
the answer's tokens are compared with those of float32 keys and values. Usage:

    python benchmarks/numerics/kv_types.py ANSWERS.jsonl.gz MODEL.gguf [--answers 16]

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
from slipstream.kv.storage import KvStorage
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint

MAX_LEN = 1024
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


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
    model = load_model(open_checkpoint(arguments.model), torch.bfloat16, kernels=open_kernels())
    shape = model.hparams
    runners = {
        name: Runner(
            model,
            KvStorage(MAX_LEN + 16, shape.num_layers, shape.kv_heads, shape.head_dim, dtype),
        )
        for name, dtype in TYPES.items()
    }
    kl: dict[str, list[Tensor]] = {name: [] for name in TYPES}
    same: dict[str, list[Tensor]] = {name: [] for name in TYPES}
    with gzip.open(arguments.recorded, "rt") as lines:
        for line in islice(lines, arguments.answers):
            answer = json.loads(line)
            tokens = (answer["prompt_ids"] + answer["response_ids"])[:MAX_LEN]
            first_row = min(len(answer["prompt_ids"]), len(tokens)) - 1
            exact = log_probs(runners["float32"], tokens, first_row)
            for name, runner in runners.items():
                got = log_probs(runner, tokens, first_row)
                kl[name].append((exact.exp() * (exact - got)).sum(-1).double())
                same[name].append(got.argmax(-1) == exact.argmax(-1))
    for name in TYPES:
        rows, hits = torch.cat(kl[name]), torch.cat(same[name]).double()
        sys.stdout.write(
            f"{name}: {len(rows)} rows, mean KL {rows.mean():.6f}, 99th percentile "
            f"{rows.quantile(0.99):.5f}, same best token {hits.mean():.4f}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
