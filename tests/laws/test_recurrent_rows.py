"""The law of rows for recurrent layers: cut, drafted and rolled back in any way, the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.audit.paged_sequence import PagedSequence
from slipstream.execution.runner import Runner
from slipstream.kv.cache import KvCache
from slipstream.kv.states import StatePool
from slipstream.models.load import load_model
from slipstream.weights.open import open_checkpoint
from tests.support.native import native_kernels
from tests.support.tiny_families import VOCAB_SIZE, write_tiny_family

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TOKENS, PAGE_SIZE, MAX_DRAFTS = 70, 4, 6
CASES = {
    "qwen3_next-float32": ("qwen3_next", torch.float32, False),
    "qwen3_5-bfloat16": ("qwen3_5", torch.bfloat16, False),
    "qwen3_5_moe-native": ("qwen3_5_moe", torch.bfloat16, True),
}


class Subject:
    """A model with room for a few sequences, a text, and its logits computed in one pass."""

    def __init__(self, path: Path, name: str) -> None:
        family, dtype, is_native = CASES[name]
        write_tiny_family(path, family, seed=2, dtype=torch.bfloat16)
        kernels = native_kernels() if is_native else None
        model = load_model(open_checkpoint(path), dtype, kernels=kernels)
        states = StatePool(4, PAGE_SIZE, MAX_DRAFTS)
        self.kv = KvCache(64, PAGE_SIZE, states=states)
        storage = model.hparams.kv_shape.storage(self.kv.num_slots, dtype)
        shape = model.hparams.state_shape
        assert shape is not None
        storage.states = shape.storage(4, MAX_DRAFTS)
        self.runner = Runner(model, storage)
        self.rng = np.random.default_rng(1)
        self.tokens: list[int] = self.rng.integers(VOCAB_SIZE, size=NUM_TOKENS).tolist()
        self.whole = self.rows([NUM_TOKENS])

    def sequence(self) -> PagedSequence:
        return PagedSequence(self.runner, self.kv, "text")

    def rows(self, cuts: list[int]) -> Tensor:
        """Logits of all rows, computed in passes of these sizes."""
        sequence, parts, start = self.sequence(), [], 0
        for count in cuts:
            parts.append(sequence.extend(self.tokens[start : start + count]).logits)
            start += count
        sequence.close()
        self.kv.check_integrity()
        return torch.cat(parts)


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(tmp_path_factory.mktemp("model"), request.param)


@pytest.mark.parametrize("cuts", [[1] * NUM_TOKENS, [3, 1, 30, 2, 33, 1]])
def test_any_cuts_give_the_same_rows(subject: Subject, cuts: list[int]) -> None:
    assert torch.equal(subject.rows(cuts), subject.whole)


@pytest.mark.parametrize("num_true", range(MAX_DRAFTS + 1))
def test_drafts_that_are_kept_to_any_depth_leave_the_state_of_plain_decoding(
    subject: Subject, num_true: int
) -> None:
    sequence, start = subject.sequence(), 20
    sequence.extend(subject.tokens[:start])
    while start + 1 + MAX_DRAFTS <= NUM_TOKENS:
        truth = subject.tokens[start : start + 1 + MAX_DRAFTS]
        lies = [(token + 1) % VOCAB_SIZE for token in truth[1 + num_true :]]
        rows = [*truth[: 1 + num_true], *lies]

        logits = sequence.compute(rows, range(-1, len(rows) - 1), num_known=1).logits

        kept = 1 + num_true
        assert torch.equal(logits[:kept], subject.whole[start : start + kept])
        sequence.keep(range(kept))
        start += kept
    sequence.close()
    subject.kv.check_integrity()


def test_two_threads_give_the_same_rows(subject: Subject) -> None:
    torch.set_num_threads(2)
    assert torch.equal(subject.rows([40, 30]), subject.whole)
