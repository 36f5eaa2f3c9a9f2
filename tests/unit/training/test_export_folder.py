"""What an export replaces, and what it leaves alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import gguf
import pytest
import torch
from safetensors import SafetensorError

from slipstream.errors import CapacityError, ConfigError, WeightsError
from slipstream.models.drafts.calibration import CALIBRATION_FILE
from slipstream.training import run_folder
from slipstream.training.plot import write_plot
from slipstream.training.publish import Layout, export_run
from slipstream.training.run_folder import Progress, RunFolder, RunRecord
from slipstream.training.session import RestoredRun, TrainingTarget, restore_run, write_fixed
from tests.support.training import (
    counting_answers,
    fixed_parts,
    tiny_settings,
    trainer_of,
    write_dataset,
)

STORED: dict[Layout, str] = {"slipstream": "float32", "speculators": "float32", "gguf": "f32"}


@pytest.fixture
def run(target: TrainingTarget, tmp_path: Path) -> RestoredRun:
    settings = tiny_settings("dspark")
    dataset = write_dataset(tmp_path / "data", target, counting_answers(12), share=0.5)
    sha256 = dataset.manifest.sha256
    folder = RunFolder(tmp_path / "run")
    folder.begin(RunRecord(target=target.identity, dataset_sha256=sha256, settings=settings))
    write_fixed(folder, fixed_parts(settings))
    folder.save(Progress(), trainer_of(settings, target, dataset).state())
    return restore_run(folder.path, target)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("layout", STORED)
def test_an_export_of_the_same_layout_is_replaced_as_a_whole(
    layout: Layout, run: RestoredRun, target: TrainingTarget, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_run(run, target, out, layout, STORED[layout], {})
    names = files_of(out).keys()
    (out / CALIBRATION_FILE).write_text("of another net")
    (out / "README.md").write_text("mine")
    export_run(run, target, out, layout, STORED[layout], {"step": 2})
    assert files_of(out).keys() == {*names, "README.md"}
    assert b'"step": 2' in (out / "provenance.json").read_bytes()


@pytest.mark.parametrize("first", STORED)
@pytest.mark.parametrize("second", STORED)
def test_an_export_in_another_layout_is_left_alone(
    first: Layout, second: Layout, run: RestoredRun, target: TrainingTarget, tmp_path: Path
) -> None:
    if first == second:
        return
    out = tmp_path / "out"
    export_run(run, target, out, first, STORED[first], {})
    before = files_of(out)
    with pytest.raises(ConfigError, match="holds ") as no:
        export_run(run, target, out, second, STORED[second], {})
    assert "another --out" in str(no.value.hint)
    assert files_of(out) == before


def test_weights_that_are_no_export_are_left_alone(
    run: RestoredRun, target: TrainingTarget
) -> None:
    source = Path(target.source)
    before = files_of(source)
    with pytest.raises(ConfigError, match="is no export of a run"):
        export_run(run, target, source, "slipstream", "float32", {})
    with pytest.raises(ConfigError, match=r"holds other weights, fixed\.safetensors"):
        export_run(run, target, run.path, "slipstream", "float32", {})
    assert files_of(source) == before


def test_a_run_replaces_its_own_drafter(run: RestoredRun, target: TrainingTarget) -> None:
    out = run.path / "draft"
    out.mkdir()
    (out / "model.safetensors").write_text("of a process that was killed")
    for _ in range(2):
        export_run(run, target, out, "slipstream", "float32", {})


@pytest.mark.parametrize("layout", STORED)
def test_a_full_disk_leaves_the_folder_as_it_was(
    layout: Layout,
    run: RestoredRun,
    target: TrainingTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    fill_up(monkeypatch)
    with pytest.raises(CapacityError, match="no space is left"):
        export_run(run, target, out, layout, STORED[layout], {})
    assert not out.exists()
    monkeypatch.undo()
    export_run(run, target, out, layout, STORED[layout], {})
    before = files_of(out)
    fill_up(monkeypatch)
    with pytest.raises(CapacityError, match="no space is left"):
        export_run(run, target, out, layout, STORED[layout], {"step": 2})
    assert files_of(out) == before


def test_a_checkpoint_that_finds_no_space_leaves_the_one_before(
    run: RestoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_up(monkeypatch)
    folder = RunFolder(run.path)
    with pytest.raises(CapacityError, match="no space is left") as no:
        folder.save(Progress(step=3), {"a": torch.zeros(3)})
    assert "goes on from its last checkpoint" in str(no.value.hint)
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-0000000"]
    assert folder.newest() is not None


@pytest.mark.parametrize("name", ["/proc/x", "a-file"])
def test_folders_that_cannot_be_made_are_named(
    name: str, run: RestoredRun, target: TrainingTarget, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("x")
    with pytest.raises(WeightsError, match=f"cannot write to .*{name}"):
        export_run(run, target, tmp_path / name, "slipstream", "float32", {})
    with pytest.raises(WeightsError, match=f"cannot write to .*{name}"):
        RunFolder(tmp_path / name).begin(run.record)


def fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tensors(_: object, path: Path, *__: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space (os error 28)")

    def no_bytes(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder, "save_file", no_tensors)
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", no_bytes)


def test_a_picture_that_finds_no_space_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.png").symlink_to("/dev/full")
    with pytest.raises(CapacityError, match="no space is left"):
        write_plot((), "a title", tmp_path / "run.png")
