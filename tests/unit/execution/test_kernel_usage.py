"""Which kernels served a model's passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.execution.runner import Runner
from slipstream.kv.storage import KvStorage
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.gguf_files import write_tiny_gguf
from tests.support.native import native_kernels
from tests.support.passes import Chunk, SlotSource, chunk_batch, make_runner
from tests.support.tiny import write_tiny_checkpoint

NUM_LAYERS = 4
PRODUCTS_OF_A_LAYER = 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "llama")


def native_runner(path: Path) -> Runner:
    kernels = native_kernels()
    model = load_model(open_checkpoint(path), torch.bfloat16, kernels=kernels)
    shape = model.hparams
    storage = KvStorage(64, shape.num_layers, shape.kv_heads, shape.head_dim, torch.bfloat16)
    return Runner(model, storage)


def run(runner: Runner, num_rows: int, *, wants_logits: bool = True) -> None:
    batch = chunk_batch([Chunk([7] * num_rows, 0, SlotSource(64).take(num_rows))])
    if not wants_logits:
        batch = replace(batch, logit_rows=np.zeros(0, np.int64))
    runner.forward(batch)


def test_torch_products_are_counted_by_the_calls_that_a_pass_was_cut_into(
    checkpoint: Path,
) -> None:
    runner = make_runner(checkpoint)
    num_cuts = len(runner._tiles.cover(40)) + len(runner._tiles.cover(3))
    num_head_cuts = len(runner._logit_tiles.cover(40))
    run(runner, 40)
    run(runner, 3, wants_logits=False)
    (kernel,) = runner.usage.products()
    assert kernel in ("torch-mm:float32", "torch-packed:float32")
    expected = NUM_LAYERS * PRODUCTS_OF_A_LAYER * num_cuts + num_head_cuts
    assert runner.usage.products() == {kernel: expected}
    assert runner.usage.attention_calls() == {"torch:float32": 2 * NUM_LAYERS}


def test_native_products_are_one_for_each_matrix_of_a_pass(checkpoint: Path) -> None:
    runner = native_runner(checkpoint)
    run(runner, 40)
    run(runner, 3, wants_logits=False)
    (kernel,) = runner.usage.products()
    assert kernel.startswith("native-")
    assert kernel.endswith(":BF16")
    assert runner.usage.products()[kernel] == 2 * NUM_LAYERS * PRODUCTS_OF_A_LAYER + 1
    (attention,) = runner.usage.attention_calls()
    assert attention.startswith("native-")
    assert attention.endswith(":bfloat16")


def test_weights_that_are_multiplied_as_stored_are_named_by_their_format(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", checkpoint, matrix_type="Q4_1")
    runner = native_runner(path)
    run(runner, 1)
    (kernel,) = runner.usage.products()
    assert kernel.endswith(":Q4_1")


def test_kernels_are_named_before_the_first_pass(checkpoint: Path) -> None:
    usage = make_runner(checkpoint).usage
    assert set(usage.products().values()) == {0}
    assert "torch" in usage.description()


def test_attention_over_float32_is_named_by_the_kernel_that_runs_and_not_by_its_order(
    tmp_path: Path,
) -> None:
    runner = native_runner(write_tiny_checkpoint(tmp_path, head_dim=32))
    if runner.attention.name != "native-amx":
        pytest.skip("needs a processor whose attention has the order of AMX")
    assert runner.attention.kernel(torch.float32) == "native-avx512:float32"
