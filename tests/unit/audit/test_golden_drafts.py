"""Recorded drafting is judged with the draft that computes it, whatever the files are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.audit.block_arrays import round_arrays
from slipstream.audit.block_replay import BlockReplay
from slipstream.audit.fixture import Result
from slipstream.audit.golden import find_fixtures, judge
from slipstream.audit.loaded_target import LoadedTarget
from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.load import load_draft
from slipstream.weights.open import open_checkpoint
from tests.support.drafts import (
    CONFIGS,
    NUM_TARGET_LAYERS,
    TAPS,
    tiny_tensors_of,
    write_draft,
)
from tests.support.tiny import write_tiny_checkpoint

PROMPT = [5, 9, 40, 41, 7]
NUM_ROUNDS = 3
ARRAYS = "some arrays.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target, two drafts that fit the same arrays, and a recording with the second."""
    target_path = write_tiny_checkpoint(tmp_path / "c", num_layers=NUM_TARGET_LAYERS)
    for name, seed in (("a", 1), ("b", 2)):
        generator = torch.Generator().manual_seed(seed)
        tensors = tiny_tensors_of(CONFIGS["dflash"])
        tensors["fc.weight"] = torch.randn(tensors["fc.weight"].shape, generator=generator) * 0.1
        write_draft(tmp_path / name, CONFIGS["dflash"], tensors)
    save_file(record(target_path, tmp_path / "b"), tmp_path / ARRAYS)
    return tmp_path


def record(target_path: Path, draft_path: Path) -> dict[str, Tensor]:
    target = LoadedTarget(target_path, 64)
    ends = ModelEnds(target.model)
    net = load_draft(open_checkpoint(draft_path), target.model.hparams, ends, torch.float32)
    assert isinstance(net, BlockNet)
    replay = BlockReplay(target, net, PROMPT)
    rounds = []
    for _ in range(NUM_ROUNDS):
        rows = replay.draft()
        rounds.append(replay.advance(rows, replay.walk(rows), net.hparams.max_draft_len))
    arrays = round_arrays(net, rounds) | {
        "prompt": torch.tensor(PROMPT),
        "output_ids": torch.tensor(replay.output),
        "taps": torch.cat(replay.injected[:NUM_ROUNDS]),
    }
    kept = ["start", "n_new_context", "block", "accept_len", "bonus", "draft_logits", "taps"]
    kept += ["prompt", "output_ids"]
    return {f"e2e0.{name}": arrays[name].contiguous() for name in kept}


def change(folder: Path, how: Callable[[dict[str, Tensor]], Any]) -> None:  # Any: not used
    arrays = load_file(folder / ARRAYS)
    how(arrays)
    save_file(arrays, folder / ARRAYS)


def the_result(folder: Path) -> Result:
    (result,) = [judge(fixture, folder) for fixture in find_fixtures(folder)]
    return result


def test_the_draft_is_found_by_what_it_computes(folder: Path) -> None:
    result = the_result(folder)
    assert (result.family, result.verdict, result.reason) == ("dflash", "pass", "")
    assert len(result.checks) >= 9


def test_a_wrong_logit_fails(folder: Path) -> None:
    def disturb(arrays: dict[str, Tensor]) -> None:
        arrays["e2e0.draft_logits"][1, 2, 3] += 1e-3

    change(folder, disturb)
    result = the_result(folder)
    assert result.verdict == "fail"
    assert [check.name for check in result.checks if not check.is_passed] == ["e2e0.draft_logits"]


def test_a_wrong_token_fails(folder: Path) -> None:
    def disturb(arrays: dict[str, Tensor]) -> None:
        arrays["e2e0.block"][1, 2] += 1

    change(folder, disturb)
    assert the_result(folder).verdict == "fail"


def test_arrays_of_a_draft_that_is_not_there_fail_with_a_reason(folder: Path) -> None:
    def widen(arrays: dict[str, Tensor]) -> None:
        arrays["e2e0.taps"] = torch.zeros(4, len(TAPS) * 64 + 1)

    change(folder, widen)
    assert "a draft that is not in the folder" in the_result(folder).reason


def test_a_draft_that_cannot_be_read_is_named(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name / "model.safetensors").write_bytes(b"")
    results = [judge(fixture, folder) for fixture in find_fixtures(folder)]
    (recorded,) = [result for result in results if result.fixture == ARRAYS]
    assert "b: " in recorded.reason


def test_a_missing_array_is_the_fixtures_fault(folder: Path) -> None:
    change(folder, lambda arrays: arrays.pop("e2e0.prompt"))
    assert "e2e0.prompt is missing" in the_result(folder).reason
