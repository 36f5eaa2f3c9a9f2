"""What the native pass says of its own time, and the reading of memory that it is measured by."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.execution.runner import Runner
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.structs import STAGES
from slipstream.kv.storage import KvStorage
from slipstream.models.load import load_model
from slipstream.models.native_decoder import NativeDecoder
from slipstream.weights.open import open_checkpoint
from tests.support.passes import Chunk, SlotSource, run_chunks
from tests.support.tiny import write_tiny_checkpoint


@pytest.fixture(autouse=True)
def _threads(unchanged_threads: None) -> None:
    torch.set_num_threads(2)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_trace_reaches_every_stage_and_changes_no_bit(
    library: KernelLibrary, family: str, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path, family)
    model = load_model(open_checkpoint(path), torch.bfloat16, kernels=library)
    assert isinstance(model, NativeDecoder)
    shape = model.hparams
    storage = KvStorage(64, shape.num_layers, shape.kv_heads, shape.head_dim, torch.bfloat16)
    runner = Runner(model, storage)
    chunk = Chunk(list(range(5, 25)), 0, SlotSource(64).take(20))
    plain = run_chunks(runner, [chunk]).logits

    stage_ns = np.zeros(len(STAGES), np.int64)
    model.trace_into(stage_ns)
    traced = run_chunks(runner, [chunk]).logits
    once = stage_ns.copy()
    run_chunks(runner, [chunk])
    twice = stage_ns.copy()
    model.trace_into(None)
    run_chunks(runner, [chunk])

    assert torch.equal(traced, plain)
    assert (once > 0).all()
    assert (twice > once).all()
    assert (stage_ns == twice).all()


@pytest.mark.parametrize("count", [0, 1, 31, 32, 1000])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_reading_memory_reads_every_number_once(
    library: KernelLibrary, count: int, num_threads: int
) -> None:
    numbers = np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)
    address = ctypes.c_void_p(numbers.ctypes.data)
    total = library.functions.sl_read_memory(num_threads, address, ctypes.c_int64(count))
    assert total == int(numbers.sum(dtype=np.uint64))
