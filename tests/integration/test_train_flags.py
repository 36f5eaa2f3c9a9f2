"""Flags of `slipstream train`: what is asked for is done or refused, and never passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_train import Arguments, flags, make_data, run
from tests.support.tiny_llm import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("answers"), model)


def refusal(capsys: pytest.CaptureFixture[str], *command: str | Path) -> str:
    """What a command that is refused for its flags says, on one line."""
    capsys.readouterr()
    assert run(*command) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "hint: " in told
    return told


def test_a_cache_is_estimated_without_a_folder_to_write(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache: Arguments = ["train", "cache", "--data", data, "--taps", "0,1", *flags(model)]

    assert run(*cache, "--estimate") == 0

    assert "11 answers, taps 0, 1: " in capsys.readouterr().out


def test_a_cache_without_a_folder_to_write_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--out DIR writes them" in refusal(capsys, "train", "cache", "--data", tmp_path)
