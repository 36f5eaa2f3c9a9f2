"""How far do 8-bit activations move the default model's distributions?

Recorded answers are read in one pass each, with activations in bfloat16 and in 8 bit; the rows that
give the answer's tokens are compared. Usage:

    python benchmarks/numerics/activations.py ANSWERS.jsonl.gz MODEL.gguf [--answers 16]

Each line of the file: `prompt_ids`, `response_ids`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from recorded import Divergence, make_runner, read_answers, read_arguments

from slipstream.execution.runner import Runner
from slipstream.kernels.library import open_kernels
from slipstream.kernels.matrix import Activations
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint


def runner_of(path: Path, activations: Activations) -> Runner:
    """Keys and values in float32, so that products alone differ."""
    model = load_model(
        open_checkpoint(path), torch.bfloat16, kernels=open_kernels(), activations=activations
    )
    return make_runner(model, torch.float32)


def main() -> int:
    arguments = read_arguments(__doc__)
    exact_runner = runner_of(arguments.model, "bfloat16")
    moved_runner = runner_of(arguments.model, "int8")
    divergence = Divergence()
    for answer in read_answers(arguments.recorded, arguments.answers):
        divergence.add(answer.log_probs(exact_runner), answer.log_probs(moved_runner))
    sys.stdout.write(f"{divergence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
