"""Flags of `slipstream train`: what is asked for is done or refused, and never passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_train import Arguments, flags, make_data, run
from tests.support.tiny_llm import write_tiny_model
from tests.support.training import counting_answers, tiny_target, write_dataset


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


@pytest.mark.parametrize(
    "flag",
    [
        "--per-category 2",
        "--max-tokens 9",
        "--temperature 0",
        "--draft-len 2",
        "--children 1",
        "--nodes 4",
        "--beside suffix",
        "--seed 0",
    ],
)
def test_flags_of_the_engine_are_refused_along_answers(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, "train", "eval", tmp_path, "--data", tmp_path, *flag.split())
    assert f"{flag.split()[0]} has no effect with --data" in told


@pytest.mark.parametrize("flag", ["--cache x", "--trained", "--held-out", "--max-answers 400"])
def test_flags_of_answers_are_refused_in_the_engine(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, "train", "eval", tmp_path, "--prompts", tmp_path, *flag.split())
    assert flag.split()[0] in told
    assert "has no effect with --prompts" in told


def test_nothing_held_out_is_nothing_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_target(tmp_path)
    write_dataset(tmp_path / "data", target, counting_answers(4), share=0.0)
    command: Arguments = ["train", "eval", "any", "--data", tmp_path / "data"]
    command += flags(Path(target.source))

    assert "no answers that are held out" in refusal(capsys, *command)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--draft-vocab 99999999", "--draft-vocab must be 1 to 320, the target's vocabulary"),
        ("--draft-vocab 321", "got 321"),
        ("--mask-token 320", "--mask-token must be 0 to 319"),
        ("--mask-token 999999", "got 999999"),
        ("--taps nan", '--taps takes whole numbers, got "nan"'),
        ("--taps 0,inf", '--taps takes whole numbers, got "0,inf"'),
        ("--taps 0,-inf", '--taps takes whole numbers, got "0,-inf"'),
        ("--taps one", "--taps takes numbers"),
        ("--epochs inf", "--epochs must be a finite number, got inf"),
        ("--repeat-weight inf", "--repeat-weight must be a finite number, got inf"),
        ("--learning-rate inf", "--learning-rate must be a finite number, got inf"),
        ("--loss label=nan", "--loss label must be a finite number, got nan"),
        ("--loss soft=inf", "--loss soft must be a finite number, got inf"),
    ],
)
def test_numbers_that_no_training_can_use_are_refused(
    flag: str,
    message: str,
    data: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit: Arguments = ["train", "fit", "--data", data, "--out", tmp_path / "run", *flags(model)]
    assert message in refusal(capsys, *fit, *flag.split())
    assert not (tmp_path / "run").exists()
