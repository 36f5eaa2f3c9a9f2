"""What loads into native kernels, what is widened, and what torch computes instead."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.storage import KvStorage
from slipstream.models.load import load_model
from slipstream.models.native_decoder import windows_of
from slipstream.weights.open import open_checkpoint
from tests.support.gguf_files import write_tiny_gguf
from tests.support.native import native_kernels
from tests.support.passes import Chunk, SlotSource, run_chunks
from tests.support.tiny import write_tiny_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def kernels() -> KernelLibrary:
    return native_kernels()


def runner_of(path: Path, kernels: KernelLibrary) -> Runner:
    model = load_model(open_checkpoint(path), torch.bfloat16, kernels=kernels)
    shape = model.hparams
    storage = KvStorage(64, shape.num_layers, shape.kv_heads, shape.head_dim, torch.bfloat16)
    return Runner(model, storage)


def logits_of(runner: Runner) -> Tensor:
    tokens = list(range(3, 20))
    chunk = Chunk(tokens, 0, SlotSource(64).take(len(tokens)))
    return run_chunks(runner, [chunk]).logits


def with_values_of(checkpoint: Path, gguf: Path) -> Path:
    """The checkpoint, its tensors replaced by what the GGUF file's blocks stand for."""
    stored = open_checkpoint(gguf)
    names = load_file(checkpoint / "model.safetensors")
    values = {name: stored.take(name).float().contiguous() for name in names}
    save_file(values, checkpoint / "model.safetensors", {"format": "pt"})
    return checkpoint


@pytest.mark.parametrize("block", ["Q5_0", "Q5_1"])
def test_blocks_that_the_kernels_do_not_multiply_are_widened_with_a_warning_and_the_same_logits(
    tmp_path: Path, kernels: KernelLibrary, caplog: pytest.LogCaptureFixture, block: str
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "model")
    gguf = write_tiny_gguf(tmp_path / "w.gguf", checkpoint, matrix_type=block)
    with caplog.at_level(logging.WARNING, "slipstream.models"):
        widened = runner_of(gguf, kernels)
    (record,) = caplog.records
    assert f"30 in {block}" in record.getMessage()
    assert "Q8_0, Q4_0 and Q4_1" in record.getMessage()
    assert "llama-quantize" in record.getMessage()
    plain = runner_of(with_values_of(checkpoint, gguf), kernels)
    assert torch.equal(logits_of(widened), logits_of(plain))


def test_blocks_of_the_kernels_are_loaded_without_a_word(
    tmp_path: Path, kernels: KernelLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        runner_of(write_tiny_gguf(tmp_path / "w.gguf", checkpoint, matrix_type="Q8_0"), kernels)
    assert not caplog.records


def test_heads_that_the_kernels_do_not_fit_are_computed_by_torch_with_a_warning(
    tmp_path: Path, kernels: KernelLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", head_dim=24)
    with caplog.at_level(logging.WARNING, "slipstream.models"):
        runner = runner_of(path, kernels)
    (record,) = caplog.records
    assert "a multiple of 16 values, and these have 24" in record.getMessage()
    assert not runner.numerics()["linear"].startswith("native")
    whole = logits_of(runner)
    assert torch.isfinite(whole).all()


def test_more_windows_than_a_native_pass_holds_are_refused(tmp_path: Path) -> None:
    hparams = load_model(open_checkpoint(write_tiny_checkpoint(tmp_path)), torch.float32).hparams
    layers = [replace(hparams.layers[0], window=window) for window in (None, *range(1, 9))]
    assert windows_of(replace(hparams, layers=tuple(layers[:8]))) == [None, *range(1, 8)]
    with pytest.raises(WeightsError, match="9 different attention windows"):
        windows_of(replace(hparams, layers=tuple(layers)))
