"""How far does the type of stored keys and values move the default model's distributions?

Recorded answers are read in one pass each, with keys and values in every type; the rows that give
the answer's tokens are compared with those of float32 keys and values. Usage:

    python benchmarks/numerics/kv_types.py ANSWERS.jsonl.gz MODEL.gguf [--answers 16]

Each line of the file: `prompt_ids`, `response_ids`.
"""

from __future__ import annotations

import sys

import torch
from recorded import Divergence, make_runner, read_answers, read_arguments

from slipstream.kernels.library import open_kernels
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def main() -> int:
    arguments = read_arguments(__doc__)
    model = load_model(open_checkpoint(arguments.model), torch.bfloat16, kernels=open_kernels())
    runners = {name: make_runner(model, dtype) for name, dtype in TYPES.items()}
    divergences = {name: Divergence() for name in TYPES}
    for answer in read_answers(arguments.recorded, arguments.answers):
        exact = answer.log_probs(runners["float32"])
        for name, runner in runners.items():
            divergences[name].add(exact, answer.log_probs(runner))
    for name, divergence in divergences.items():
        sys.stdout.write(f"{name}: {divergence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
