"""Law: a row's result does not depend on what is computed with it, bit for bit.

The same sequence is computed in one pass, row by row, in random chunks, among other requests, as
nodes of a draft tree, with one thread and with two; its logits must be equal in every bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.execution.batch import Branch, ForwardBatch, IntArray
from slipstream.execution.runner import Runner
from tests.support.passes import Chunk, SlotSource, make_runner, run_chunks
from tests.support.tiny import write_tiny_checkpoint

SMOLLM2_SIZES = {
    "vocab_size": 1024,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_layers": 2,
    "num_heads": 9,
    "num_kv_heads": 3,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
ODD_SIZES = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "head_dim": 24,
    "num_layers": 3,
    "vocab_size": 333,
}
WIDE_HEADS = {"head_dim": 64, "num_heads": 2, "num_kv_heads": 2, "num_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any], torch.dtype, torch.dtype]] = {
    "llama-odd-float32": ("llama", ODD_SIZES, torch.float32, torch.float32),
    "llama-odd-bfloat16": ("llama", ODD_SIZES, torch.bfloat16, torch.bfloat16),
    "mistral-float32": ("mistral", {"sliding_window": 37}, torch.float32, torch.float32),
    "mistral-bfloat16": ("mistral", {"sliding_window": 200}, torch.bfloat16, torch.bfloat16),
    "qwen2-float32": ("qwen2", WIDE_HEADS, torch.float32, torch.bfloat16),
    "qwen2-bfloat16": ("qwen2", {}, torch.bfloat16, torch.float32),
    "qwen3-float32": ("qwen3", {}, torch.float32, torch.float32),
    "qwen3-bfloat16": ("qwen3", ODD_SIZES, torch.bfloat16, torch.bfloat16),
    "gemma3-float32": ("gemma3_text", {}, torch.float32, torch.float32),
    "gemma3-bfloat16": ("gemma3_text", ODD_SIZES, torch.bfloat16, torch.bfloat16),
    "smollm2-float32": ("llama", SMOLLM2_SIZES, torch.float32, torch.float32),
    "smollm2-int8-kv": ("llama", SMOLLM2_SIZES, torch.bfloat16, torch.int8),
    "gemma3-int8-kv": ("gemma3_text", ODD_SIZES, torch.float32, torch.int8),
    "smollm2-bfloat16": ("llama", SMOLLM2_SIZES, torch.bfloat16, torch.bfloat16),
}
PROMPT_LEN = 300  # more than two key blocks, more than one tile
TAIL_LEN = 12  # rows decoded one by one


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine; one test asks for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Subject:
    """A model, a sequence, and its logits computed in one pass."""

    def __init__(self, path: Path, name: str) -> None:
        family, sizes, dtype, kv_dtype = MODELS[name]
        write_tiny_checkpoint(path, family, seed=3, dtype=torch.bfloat16, **sizes)
        self.runner: Runner = make_runner(path, dtype, kv_dtype=kv_dtype, num_slots=8192)
        self.slots = SlotSource(8192)
        self.rng = np.random.default_rng(11)
        self.tokens = self.draw(PROMPT_LEN)
        self.whole = self.run([Chunk(self.tokens, 0, self.slots.take(PROMPT_LEN))])

    def draw(self, count: int) -> list[int]:
        """Random tokens."""
        vocab_size = self.runner.model.hparams.vocab_size
        drawn: list[int] = self.rng.integers(vocab_size, size=count).tolist()
        return drawn

    def run(self, chunks: list[Chunk]) -> Tensor:
        """Logits of every row of one pass."""
        return run_chunks(self.runner, chunks).logits

    def prefilled(self, length: int) -> Chunk:
        """The sequence's first `length` tokens, computed into slots for all of it."""
        chunk = Chunk(self.tokens[:length], 0, self.slots.take(PROMPT_LEN + 64))
        self.run([chunk])
        return chunk


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    torch.set_num_threads(1)
    return Subject(tmp_path_factory.mktemp("model"), request.param)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert torch.isfinite(expected).all()
    assert torch.equal(actual, expected)


def test_rows_computed_one_by_one_equal_the_whole(subject: Subject) -> None:
    start = PROMPT_LEN - TAIL_LEN
    slots = subject.prefilled(start).slots

    rows = [
        subject.run([Chunk([subject.tokens[position]], position, slots)])
        for position in range(start, PROMPT_LEN)
    ]

    assert_same(torch.cat(rows), subject.whole[start:])


def test_the_first_rows_computed_one_by_one_equal_the_whole(subject: Subject) -> None:
    slots = subject.slots.take(TAIL_LEN)

    rows = [
        subject.run([Chunk([subject.tokens[position]], position, slots)])
        for position in range(TAIL_LEN)
    ]

    assert_same(torch.cat(rows), subject.whole[:TAIL_LEN])


@pytest.mark.parametrize("longest", [20, 150])
def test_any_chunk_boundaries_give_the_same_rows(subject: Subject, longest: int) -> None:
    slots = subject.slots.take(PROMPT_LEN)
    rows, start = [], 0

    while start < PROMPT_LEN:
        stop = min(PROMPT_LEN, start + int(subject.rng.integers(1, longest + 1)))
        rows.append(subject.run([Chunk(subject.tokens[start:stop], start, slots)]))
        start = stop

    assert_same(torch.cat(rows), subject.whole)


def test_other_requests_in_the_pass_change_nothing(subject: Subject) -> None:
    start = PROMPT_LEN - TAIL_LEN
    slots = subject.prefilled(start).slots
    foreign_slots = subject.slots.take(6 * 90)

    for position in range(start, PROMPT_LEN):
        others = [
            Chunk(subject.draw(int(subject.rng.integers(1, 91))), 0, foreign_slots[at : at + 90])
            for at in range(0, int(subject.rng.integers(1, 7)) * 90, 90)
        ]
        place = int(subject.rng.integers(0, len(others) + 1))
        mine = Chunk([subject.tokens[position]], position, slots)
        num_before = sum(len(chunk.tokens) for chunk in others[:place])

        logits = subject.run([*others[:place], mine, *others[place:]])

        assert_same(logits[num_before], subject.whole[position])


def test_nodes_of_a_draft_tree_equal_the_whole_and_survive_compaction(subject: Subject) -> None:
    anchor = PROMPT_LEN - TAIL_LEN
    depth = 5
    prefix = subject.prefilled(anchor).slots
    tree = random_tree(subject, anchor, depth)
    node_slots = subject.slots.take(len(tree.tokens))

    output = subject.runner.forward(tree_batch(tree, anchor, prefix[:anchor], node_slots))

    path = tree.true_path
    assert_same(output.logits[path], subject.whole[anchor : anchor + depth])

    kept = prefix[anchor : anchor + depth]
    subject.runner.storage.copy(node_slots[path], kept)
    for position in range(anchor + depth, PROMPT_LEN):
        logits = subject.run([Chunk([subject.tokens[position]], position, prefix)])
        assert_same(logits[0], subject.whole[position])


@pytest.mark.parametrize(
    "subject", ["smollm2-float32", "smollm2-bfloat16", "gemma3-bfloat16"], indirect=True
)
def test_the_number_of_threads_changes_nothing(subject: Subject) -> None:
    torch.set_num_threads(2)
    start = PROMPT_LEN - 2
    slots = subject.slots.take(PROMPT_LEN)

    prefill = subject.run([Chunk(subject.tokens[:start], 0, slots)])
    decoded = subject.run([Chunk(subject.tokens[start : start + 1], start, slots)])

    assert_same(torch.cat((prefill, decoded)), subject.whole[:-1])


@dataclass(frozen=True)
class Tree:
    """Draft nodes in topological order; node 0 is the anchor.

    Attributes:
        parents: Parent of each node, -1 for the anchor.
        true_path: The nodes that carry the sequence's own tokens, from the anchor down.
    """

    tokens: list[int]
    parents: list[int]
    true_path: list[int]

    def ancestors(self, node: int) -> list[int]:
        """The path from the anchor to the node, both included."""
        path = [node]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        return path


def random_tree(subject: Subject, anchor: int, depth: int) -> Tree:
    """The sequence's next tokens among random siblings, which have children of their own."""
    tokens, parents, path = [subject.tokens[anchor]], [-1], [0]
    for level in range(1, depth):
        strays = subject.draw(3)
        place = int(subject.rng.integers(0, 3))
        parents += [path[-1]] * 3 + [len(tokens)]
        strays.insert(3, strays[0])
        strays[place] = subject.tokens[anchor + level]
        tokens += strays
        path.append(len(tokens) - 4 + place)
    return Tree(tokens, parents, path)


def tree_batch(
    tree: Tree, anchor: int, prefix_slots: IntArray, node_slots: IntArray
) -> ForwardBatch:
    """One pass over the tree, each root-to-leaf path a branch, each node in one branch."""
    placed: set[int] = set()
    branches = []
    leaves = sorted(set(range(len(tree.tokens))) - set(tree.parents), reverse=True)
    for leaf in leaves:
        path = tree.ancestors(leaf)
        rows = np.array([node for node in path if node not in placed], np.int64)
        placed |= set(path)
        depths = np.array([len(tree.ancestors(node)) - 1 for node in rows])
        slots = np.concatenate([prefix_slots, node_slots[path]])
        branches.append(Branch(rows, anchor + depths, slots))
    all_depths = [len(tree.ancestors(node)) - 1 for node in range(len(tree.tokens))]
    return ForwardBatch(
        tokens=np.array(tree.tokens, np.int64),
        positions=anchor + np.array(all_depths, np.int64),
        slots=node_slots,
        branches=tuple(branches),
        logit_rows=np.arange(len(tree.tokens)),
    )
