"""Which heads native calls draft with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream.kernels.library import KernelLibrary
from slipstream.models.load import load_model
from slipstream.models.mtp.load import load_heads
from slipstream.models.mtp.native import obstacle
from slipstream.weights.open import open_checkpoint
from tests.support.mtp import write_head_folder
from tests.support.native import native_kernels
from tests.support.tiny import write_tiny_checkpoint
from tests.support.tiny_families import write_tiny_family


def obstacle_of(target: Path, head: Path, kernels: KernelLibrary | None) -> str | None:
    dtype = torch.float32 if kernels is None else torch.bfloat16
    model = load_model(open_checkpoint(target), dtype, kernels=kernels)
    return obstacle(load_heads(open_checkpoint(head), model, dtype, kernels))


def test_a_plain_layer_beside_a_native_target_drafts_in_native_calls(tmp_path: Path) -> None:
    target = write_tiny_checkpoint(tmp_path / "target")
    some = write_head_folder(tmp_path / "some", target, draft_token_ids=list(range(0, 300, 3)))
    whole = write_head_folder(tmp_path / "whole", target)
    assert obstacle_of(target, whole, native_kernels()) is None
    assert obstacle_of(target, some, native_kernels()) is None


def test_torch_drafts_where_torch_multiplies(tmp_path: Path) -> None:
    target = write_tiny_checkpoint(tmp_path / "target")
    head = write_head_folder(tmp_path / "head", target)
    reason = obstacle_of(target, head, None)
    assert reason == "its matrices are not in native kernels"


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "qwen3_5"])
def test_a_target_that_torch_runs_with_native_products_will_do(tmp_path: Path, family: str) -> None:
    target = write_tiny_family(tmp_path / "target", family)
    head = write_head_folder(tmp_path / "head", target)
    assert obstacle_of(target, head, native_kernels()) is None


def test_torch_drafts_beside_a_target_without_native_products(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path / "target")
    target = load_model(open_checkpoint(path), torch.float32)
    checkpoint = open_checkpoint(write_head_folder(tmp_path / "head", path))
    reason = obstacle(load_heads(checkpoint, target, torch.bfloat16, native_kernels()))
    assert reason == "the target's embeddings and vocabulary are not in native kernels"


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_torch_drafts_with_layers_of_other_kinds(tmp_path: Path, family: str) -> None:
    path = write_tiny_family(tmp_path, family)
    reason = obstacle_of(path, path, native_kernels())
    assert reason is not None
    assert "its layer has" in reason


def test_torch_drafts_with_several_heads(tmp_path: Path) -> None:
    path = write_tiny_family(tmp_path, "deepseek_v3", num_nextn_predict_layers=2)
    assert obstacle_of(path, path, native_kernels()) == "there are several heads"
