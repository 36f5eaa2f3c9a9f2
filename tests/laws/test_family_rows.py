"""The law of rows for families that the native pass does not compute: experts, latents.

One sequence in one pass, row by row, in chunks, among others: the same bits, whoever multiplies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.execution.runner import Runner
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.passes import Chunk, SlotSource, run_chunks
from tests.support.tiny_families import VOCAB_SIZE, write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TOKENS = 150
CASES = {
    f"{family}-{name}": (family, dtype, is_native)
    for family in ("qwen3_moe", "deepseek_v3")
    for name, dtype, is_native in (
        ("float32", torch.float32, False),
        ("bfloat16", torch.bfloat16, False),
        ("native", torch.bfloat16, True),
    )
}


class Subject:
    """A model, a sequence, and its logits computed in one pass."""

    def __init__(self, path: Path, name: str) -> None:
        family, dtype, is_native = CASES[name]
        write_tiny_family(path, family, seed=5, dtype=torch.bfloat16)
        kernels = native_kernels() if is_native else None
        model = load_model(open_checkpoint(path), dtype, kernels=kernels)
        self.runner = Runner(model, model.hparams.kv_shape.storage(4096, dtype))
        self.slots = SlotSource(4096)
        self.rng = np.random.default_rng(7)
        self.tokens = self.draw(NUM_TOKENS)
        self.whole = self.run(Chunk(self.tokens, 0, self.slots.take(NUM_TOKENS)))

    def draw(self, count: int) -> list[int]:
        drawn: list[int] = self.rng.integers(VOCAB_SIZE, size=count).tolist()
        return drawn

    def run(self, *chunks: Chunk) -> Tensor:
        return run_chunks(self.runner, chunks).logits


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(tmp_path_factory.mktemp("model"), request.param)


def test_any_cuts_give_the_same_rows(subject: Subject) -> None:
    for longest in (1, 3, 40):
        slots, rows, start = subject.slots.take(NUM_TOKENS), [], 0
        while start < NUM_TOKENS:
            stop = min(NUM_TOKENS, start + int(subject.rng.integers(1, longest + 1)))
            rows.append(subject.run(Chunk(subject.tokens[start:stop], start, slots)))
            start = stop
        assert torch.equal(torch.cat(rows), subject.whole)


def test_other_requests_in_the_pass_change_nothing(subject: Subject) -> None:
    slots = subject.slots.take(NUM_TOKENS)
    subject.run(Chunk(subject.tokens[:-6], 0, slots))
    foreign = subject.slots.take(120)
    for position in range(NUM_TOKENS - 6, NUM_TOKENS):
        count = int(subject.rng.integers(1, 60))
        mine = Chunk([subject.tokens[position]], position, slots)
        others = [Chunk(subject.draw(count), 0, foreign[at : at + 60]) for at in (0, 60)]

        logits = subject.run(others[0], mine, others[1])

        assert torch.equal(logits[count], subject.whole[position])


def test_two_threads_give_the_same_rows(subject: Subject) -> None:
    torch.set_num_threads(2)
    slots = subject.slots.take(NUM_TOKENS)
    assert torch.equal(subject.run(Chunk(subject.tokens, 0, slots)), subject.whole)


def test_native_products_stay_near_torchs(tmp_path: Path) -> None:
    for family in ("qwen3_moe", "deepseek_v3"):
        path = write_tiny_family(tmp_path / family, family, dtype=torch.bfloat16)
        plain = load_model(open_checkpoint(path), torch.float32)
        native = load_model(open_checkpoint(path), torch.bfloat16, kernels=native_kernels())
        logits = []
        for model, dtype in ((plain, torch.float32), (native, torch.bfloat16)):
            runner: Runner = Runner(model, model.hparams.kv_shape.storage(64, dtype))
            chunk = Chunk(list(range(3, 33)), 0, SlotSource(64).take(30))
            logits.append(run_chunks(runner, [chunk]).logits)
        error = (logits[0] - logits[1]).abs()
        assert float(error.median()) < 0.1 * float(logits[0].std())
