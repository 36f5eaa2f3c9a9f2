"""Tiny target models against the arrays that the reference implementation computed in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slipstream.execution.runner import Runner
from tests.support.passes import Chunk, SlotSource, make_runner, run_chunks
from tests.support.paths import shared_dir

MODELS = ("llama_tied", "llama3_rope", "mistral_swa", "qwen2", "qwen3", "gemma3_text")
TOLERANCE = 2e-4


class Target:
    """One model with its expected arrays for one of the two inputs."""

    def __init__(self, folder: Path, runner: Runner, prefix: str) -> None:
        arrays = load_file(folder / "expected.safetensors")
        self.runner = runner
        self.expected = {
            name.removeprefix(f"{prefix}."): array
            for name, array in arrays.items()
            if name.startswith(f"{prefix}.")
        }
        self.prompt: list[int] = self.expected["input_ids"].flatten().tolist()
        self.slots = SlotSource(1024).take(len(self.prompt) + 64)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest) -> tuple[Path, Runner]:
    folder = shared_dir("golden", "open", "targets", request.param)
    return folder, make_runner(folder, num_slots=1024)


@pytest.fixture(params=["a", "b"], ids=["short", "long"])
def target(request: pytest.FixtureRequest, loaded: tuple[Path, Runner]) -> Target:
    return Target(*loaded, request.param)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max().item() <= TOLERANCE


def test_the_logits_of_a_whole_prompt_are_the_references(target: Target) -> None:
    output = run_chunks(target.runner, [Chunk(target.prompt, 0, target.slots)])

    assert_close(output.logits, target.expected["logits"])


def test_every_layer_gives_the_references_hidden_states(target: Target) -> None:
    model = target.runner.model
    layer_ids = tuple(range(-1, model.hparams.num_layers))

    output = run_chunks(target.runner, [Chunk(target.prompt, 0, target.slots)], layer_ids)

    taps = [output.taps[layer] for layer in layer_ids]
    expected = target.expected["hidden_states"]
    assert_close(torch.stack(taps[:-1]), expected[:-1])
    assert_close(taps[-1], target.expected["last_layer_out_prenorm"])
    assert_close(model.final_norm(taps[-1]), expected[-1])


def test_decoding_token_by_token_gives_the_references_step_logits(target: Target) -> None:
    prefill_len = int(target.expected["prefill_len"])
    prompt, slots = target.prompt, target.slots

    prefill = run_chunks(target.runner, [Chunk(prompt[:prefill_len], 0, slots)]).logits[-1:]
    steps = [
        run_chunks(target.runner, [Chunk([prompt[position]], position, slots)]).logits
        for position in range(prefill_len, len(prompt))
    ]

    assert_close(torch.cat([prefill, *steps]), target.expected["step_logits"])


def test_greedy_decoding_continues_as_the_reference_does(target: Target) -> None:
    logits = run_chunks(target.runner, [Chunk(target.prompt, 0, target.slots)]).logits
    tokens = [int(logits[-1].argmax())]

    while len(tokens) < len(target.expected["greedy"]):
        position = len(target.prompt) + len(tokens) - 1
        logits = run_chunks(target.runner, [Chunk(tokens[-1:], position, target.slots)]).logits
        tokens.append(int(logits[-1].argmax()))

    assert tokens == target.expected["greedy"].tolist()
