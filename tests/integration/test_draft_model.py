"""Draft models with real weights, from the configuration to the tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.llm import LLM, Generation
from slipstream.sampling.params import SamplingParams
from tests.support.models import default_model_path
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint

PROMPTS = [list(range(10, 50)), list(range(60, 65)), [*range(10, 40), 99]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=1.0,
    top_p=0.95,
    repetition_penalty=1.1,
    max_tokens=40,
    seed=5,
    ignore_eos=True,
)


def load(path: Path, drafters: Sequence[dict[str, Any]], dtype: str = "float32") -> LLM:
    return LLM(
        str(path),
        settings={
            "model.dtype": dtype,
            "model.max_model_len": 128,
            "memory.kv_bytes": 2**28,
            "engine.num_threads": 1,
            "speculation.controller": "fixed",
            "speculation.drafters": list(drafters),
        },
    )


def num_drafted_and_accepted(generations: Sequence[Generation]) -> tuple[int, int]:
    stats = [choice.speculation for item in generations for choice in item.choices]
    return (
        sum(item.num_draft_tokens for item in stats),
        sum(item.num_accepted_tokens for item in stats),
    )


def token_ids(generations: Sequence[Generation]) -> list[list[list[int]]]:
    return [[choice.token_ids for choice in item.choices] for item in generations]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_target_accepts_every_token_that_it_drafts_itself(
    tmp_path: Path, params: SamplingParams
) -> None:
    path = write_tiny_checkpoint(tmp_path / "tiny")
    itself = {"kind": "draft_model", "source": "target", "dtype": "float32"}
    generations = load(path, [itself]).generate(PROMPTS, params, n=2)
    drafted, accepted = num_drafted_and_accepted(generations)
    assert drafted == accepted > 100


@pytest.mark.parametrize("num_children", [1, 3])
def test_a_target_at_lower_precision_is_partly_accepted_and_changes_nothing(
    tmp_path: Path, num_children: int
) -> None:
    path = write_tiny_checkpoint(tmp_path / "tiny")
    rounded = {
        "kind": "draft_model",
        "source": "target",
        "dtype": "bfloat16",
        "num_children": num_children,
    }
    plain, drafting = load(path, []), load(path, [rounded])
    for params in (GREEDY, SAMPLED):
        generations = drafting.generate(PROMPTS, params)
        assert token_ids(generations) == token_ids(plain.generate(PROMPTS, params))
        drafted, accepted = num_drafted_and_accepted(generations)
        assert 50 < accepted < drafted


def test_a_model_with_other_weights_and_another_family_may_draft(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "target")
    other = write_tiny_checkpoint(tmp_path / "other", "qwen3", seed=4, num_layers=2)
    stranger = {"kind": "draft_model", "source": str(other), "num_children": 2}
    params = SamplingParams(temperature=1.0, top_k=3, max_tokens=40, ignore_eos=True)
    generations = load(path, [stranger, {"kind": "suffix"}]).generate(PROMPTS, params)
    assert token_ids(generations) == token_ids(load(path, []).generate(PROMPTS, params))
    drafted, accepted = num_drafted_and_accepted(generations)
    assert 0 < accepted < drafted


@pytest.mark.model
def test_the_default_model_accepts_every_token_that_it_drafts_itself() -> None:
    itself = {"kind": "draft_model", "source": "target"}
    llm = load(default_model_path(), [itself], dtype="bfloat16")
    prompts = ["The capital of France is", "def fibonacci(n):"]
    for params in (GREEDY, SAMPLED):
        generations = llm.generate(prompts, replace(params, max_tokens=16))
        drafted, accepted = num_drafted_and_accepted(generations)
        assert drafted == accepted > 20


def kernels_of(llm: LLM) -> dict[str, set[str]]:
    """Model -> the kernels that have served products or attention of it."""
    found: dict[str, set[str]] = {}
    for line in llm.engine.observer.metrics.exposition().decode().splitlines():
        match = re.match(r'slipstream_kernel_\w+_total\{kernel="(.*)",model="(.*)"\} (.*)', line)
        if match and float(match[3]):
            found.setdefault(match[2], set()).add(match[1])
    return found


@pytest.mark.model
def test_the_default_model_and_its_draft_model_are_served_by_native_kernels_alone() -> None:
    native_kernels()
    drafter = {"kind": "draft_model", "name": "small", "source": "target"}
    with load(default_model_path(), [drafter], "bfloat16") as llm:
        llm.generate(PROMPTS, replace(GREEDY, max_tokens=4))
        kernels = kernels_of(llm)
    assert kernels.keys() == {"target", "small"}
    assert all(name.startswith("native-") for names in kernels.values() for name in names)
    assert any(name.endswith(":Q4_1") for name in kernels["target"])
