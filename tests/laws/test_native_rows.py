"""The law of rows for whole models in native kernels: however they are cut, the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.execution.batch import Branch, ForwardBatch
from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.passes import Chunk, SlotSource, chunk_batch, run_chunks
from tests.support.tiny import FAMILIES, write_tiny_checkpoint

NUM_TOKENS = 70


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def kernels() -> KernelLibrary:
    return native_kernels()


def make_runner(
    path: Path,
    dtype: torch.dtype,
    kernels: KernelLibrary | None,
    kv_dtype: torch.dtype | None = None,
) -> Runner:
    model = load_model(open_checkpoint(path), dtype, kernels=kernels)
    shape = model.hparams
    storage = shape.kv_shape.storage(512, kv_dtype or dtype)
    return Runner(model, storage)


def tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(3, 300, NUM_TOKENS)]


def logits_by(runner: Runner, cuts: Sequence[int], seed: int) -> Tensor:
    """Logits of all rows, computed in passes of `cuts` rows over scattered slots."""
    slots, parts, start = SlotSource(512, seed).take(NUM_TOKENS), [], 0
    for count in cuts:
        chunk = Chunk(tokens()[start : start + count], start, slots)
        parts.append(run_chunks(runner, [chunk]).logits)
        start += count
    assert start == NUM_TOKENS
    return torch.cat(parts)


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("head_dim", [16, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_any_chunks_give_the_same_logits(
    tmp_path: Path, kernels: KernelLibrary, family: str, head_dim: int, kv_dtype: torch.dtype
) -> None:
    path = write_tiny_checkpoint(tmp_path, family, head_dim=head_dim)
    runner = make_runner(path, torch.bfloat16, kernels, kv_dtype)
    assert runner.numerics()["linear"].startswith("native")
    whole = logits_by(runner, [NUM_TOKENS], 0)
    for seed, cuts in enumerate(([1] * NUM_TOKENS, [3, 17, 33, 17], [64, 6], [5, 1, 64]), 1):
        assert torch.equal(logits_by(runner, cuts, seed), whole), cuts


@pytest.mark.parametrize("family", FAMILIES)
def test_native_logits_are_no_farther_from_float32_than_torchs(
    tmp_path: Path, kernels: KernelLibrary, family: str
) -> None:
    path = write_tiny_checkpoint(tmp_path, family, head_dim=32)
    exact = logits_by(make_runner(path, torch.float32, None), [NUM_TOKENS], 0)
    native = logits_by(make_runner(path, torch.bfloat16, kernels), [NUM_TOKENS], 0)
    plain = logits_by(make_runner(path, torch.bfloat16, None), [NUM_TOKENS], 0)
    assert (native - exact).square().mean() < 1.5 * (plain - exact).square().mean()


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(tmp_path: Path, kernels: KernelLibrary, num_threads: int) -> None:
    runner = make_runner(write_tiny_checkpoint(tmp_path), torch.bfloat16, kernels)
    whole = logits_by(runner, [NUM_TOKENS], 0)
    torch.set_num_threads(num_threads)
    assert torch.equal(logits_by(runner, [60, 10], 1), whole)


def test_a_tree_node_has_the_bits_of_the_plain_token(
    tmp_path: Path, kernels: KernelLibrary
) -> None:
    runner = make_runner(write_tiny_checkpoint(tmp_path), torch.bfloat16, kernels)
    slots = SlotSource(512, 3).take(24)
    run_chunks(runner, [Chunk(tokens()[:20], 0, slots)])
    first, second = slots[:22], np.concatenate((slots[:20], slots[22:24]))
    batch = ForwardBatch(
        tokens=np.array([7, 9, 11, 13]),
        positions=np.array([20, 21, 20, 21]),
        slots=slots[20:24],
        branches=(
            Branch(np.array([0, 1]), np.array([20, 21]), first),
            Branch(np.array([2, 3]), np.array([20, 21]), second),
        ),
        logit_rows=np.arange(4),
    )
    together = runner.forward(batch).logits
    alone = [runner.forward(chunk_batch([Chunk([7], 20, first)])).logits]
    alone.append(runner.forward(chunk_batch([Chunk([9], 21, first)])).logits)
    alone.append(runner.forward(chunk_batch([Chunk([11], 20, second)])).logits)
    alone.append(runner.forward(chunk_batch([Chunk([13], 21, second)])).logits)
    assert torch.equal(together, torch.cat(alone))


def test_taps_are_those_of_the_torch_decoder_up_to_rounding(
    tmp_path: Path, kernels: KernelLibrary
) -> None:
    path = write_tiny_checkpoint(tmp_path)
    slots = SlotSource(512).take(5)
    chunk = Chunk(tokens()[:5], 0, slots)
    native = run_chunks(make_runner(path, torch.bfloat16, kernels), [chunk], (-1, 0, 3)).taps
    plain = run_chunks(make_runner(path, torch.bfloat16, None), [chunk], (-1, 0, 3)).taps
    assert torch.equal(native[-1], plain[-1])
    for layer in (0, 3):
        assert torch.allclose(native[layer], plain[layer], atol=0.4, rtol=0.05)
