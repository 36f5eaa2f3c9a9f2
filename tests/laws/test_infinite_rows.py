"""Rows that are not finite: whoever does not see them has the bits that it has without them.

A draft may hold such a row, or another request.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.passes import Chunk, SlotSource, run_chunks
from tests.support.tiny import FAMILIES, write_tiny_checkpoint
from tests.support.tiny_families import write_tiny_family

INFINITE = 299  # a token whose embedding is
TOKENS = list(range(10, 42))  # so many rows that torch's tiles need no others beside them
FAMILY = "llama"
LATENT = "deepseek_v3"

pytestmark = pytest.mark.usefixtures("one_thread")


def make_runner(
    path: Path, family: str, kernels: KernelLibrary | None, kv_dtype: torch.dtype
) -> Runner:
    if family in FAMILIES:
        write_tiny_checkpoint(path, family, head_dim=32)
    else:
        write_tiny_family(path, family)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][INFINITE] = torch.inf
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    dtype = torch.float32 if kernels is None else torch.bfloat16
    model = load_model(open_checkpoint(path), dtype, kernels=kernels)
    return Runner(model, model.hparams.kv_shape.storage(256, kv_dtype))


@pytest.fixture(
    params=[
        (FAMILY, "native", torch.float32),
        (FAMILY, "native", torch.bfloat16),
        (FAMILY, "native", torch.int8),
        (FAMILY, "torch", torch.float32),
        (FAMILY, "torch", torch.bfloat16),
        (FAMILY, "torch", torch.int8),
        (LATENT, "torch", torch.float32),
        (LATENT, "torch", torch.int8),
    ],
    ids=lambda param: "-".join(str(part).removeprefix("torch.") for part in param),
)
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    family, who, kv_dtype = request.param
    return make_runner(tmp_path, family, native_kernels() if who == "native" else None, kv_dtype)


def test_rows_before_an_infinite_one_keep_their_bits(runner: Runner) -> None:
    slots = SlotSource(256).take(len(TOKENS))
    expected = run_chunks(runner, [Chunk(TOKENS, 0, slots)]).logits[:20]
    tokens = [*TOKENS[:20], INFINITE, *TOKENS[21:]]
    got = run_chunks(runner, [Chunk(tokens, 0, slots)]).logits
    assert torch.equal(got[:20], expected)
    assert got[20:].isnan().all()


def test_a_request_with_infinite_rows_leaves_the_next_one_alone(runner: Runner) -> None:
    source = SlotSource(256)
    chunk = Chunk(TOKENS, 0, source.take(len(TOKENS)))
    expected = run_chunks(runner, [chunk]).logits
    # So few rows that torch computes others beside them, which are written to the scratch page.
    assert run_chunks(runner, [Chunk([INFINITE] * 11, 0, source.take(11))]).logits.isnan().all()
    assert torch.equal(run_chunks(runner, [chunk]).logits, expected)
