"""One pass: what goes in, what is stored, what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.execution.host_allocator import keep_freed_memory
from slipstream.execution.runner import Runner
from tests.support.passes import Chunk, SlotSource, chunk_batch, make_runner, run_chunks
from tests.support.tiny import write_tiny_checkpoint

TOKENS = [5, 9, 200, 17, 3]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    path: Path = tmp_path_factory.mktemp("model")
    return make_runner(write_tiny_checkpoint(path, "gemma3_text"))


def test_logits_come_for_the_wanted_rows_in_their_order(runner: Runner) -> None:
    batch = chunk_batch([Chunk(TOKENS, 0, SlotSource(64).take(5))])
    every = runner.forward(batch).logits

    wanted = runner.forward(replace(batch, logit_rows=np.array([4, 1, 1]))).logits

    assert wanted.dtype == torch.float32
    assert torch.equal(wanted, every[[4, 1, 1]])


def test_a_pass_without_wanted_logits_gives_none(runner: Runner) -> None:
    batch = chunk_batch([Chunk(TOKENS, 0, SlotSource(64).take(5))])

    output = runner.forward(replace(batch, logit_rows=np.array([], np.int64)))

    assert output.logits.shape == (0, 320)


def test_taps_are_the_residual_stream_after_the_named_layers(runner: Runner) -> None:
    model = runner.model
    slots = SlotSource(64).take(5)

    output = run_chunks(runner, [Chunk(TOKENS, 0, slots)], (-1, 1, 3))

    assert sorted(output.taps) == [-1, 1, 3]
    assert all(tap.shape == (5, 64) for tap in output.taps.values())
    from_last = model.final_norm(output.taps[3]) @ model_head(runner).t()
    assert torch.allclose(from_last, output.logits, atol=1e-4)


def model_head(runner: Runner) -> torch.Tensor:
    """The tied, unscaled embeddings, recovered from the embedding taps of every token."""
    num_tokens = runner.model.hparams.vocab_size
    slots = SlotSource(512, seed=1).take(num_tokens)
    chunk = Chunk(list(range(num_tokens)), 0, slots)
    return run_chunks(runner, [chunk], (-1,)).taps[-1] / 8.0


def test_keys_are_stored_in_the_rows_slots_and_nowhere_else_but_scratch(runner: Runner) -> None:
    slots = SlotSource(64, seed=2).take(5)
    storage = runner.storage
    before = [keys.clone() for keys in storage.keys]

    run_chunks(runner, [Chunk([7, 7, 8, 9, 300], 0, slots)])

    for layer, keys in enumerate(storage.keys):
        changed = (keys != before[layer]).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(slots.tolist()) <= set(changed) <= {0, *slots.tolist()}


def test_the_numerics_say_what_decides_the_bits(runner: Runner) -> None:
    numerics = runner.numerics()

    assert numerics["dtype"] == numerics["kv_dtype"] == "float32"
    assert numerics["torch"] == torch.__version__
    assert numerics["attention"] == "torch"
    assert "num_threads" not in numerics


def test_a_new_number_of_threads_is_proved_before_it_is_used(runner: Runner) -> None:
    chunk = Chunk(TOKENS, 0, SlotSource(64).take(5))
    before = run_chunks(runner, [chunk]).logits

    torch.set_num_threads(2)
    try:
        after = run_chunks(runner, [chunk]).logits
        assert runner.description()["num_threads"] == "2"
    finally:
        torch.set_num_threads(1)

    assert torch.equal(after, before)


def test_the_c_library_can_be_told_to_keep_freed_memory() -> None:
    assert keep_freed_memory() in (True, False)
