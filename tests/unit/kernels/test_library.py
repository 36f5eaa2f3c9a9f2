"""What happens where the kernels cannot be used."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.kernels import build, library


def test_a_library_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(library.KernelsUnavailableError, match="was not built"):
        library.KernelLibrary(tmp_path / "none.so")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"no library")
    with pytest.raises(library.KernelsUnavailableError, match="cannot be loaded"):
        library.KernelLibrary(path)


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        library.KernelLibrary()
    except library.KernelsUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(library, "source_digest", lambda: "0" * 16)
    with pytest.raises(library.KernelsUnavailableError, match="other sources"):
        library.KernelLibrary()


def test_without_kernels_one_warning_says_what_is_lost_and_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LIBRARY_NAME", "nowhere.so")
    library.open_kernels.cache_clear()
    with caplog.at_level(logging.WARNING, "slipstream.kernels"):
        assert library.open_kernels() is None
        assert library.open_kernels() is None
    library.open_kernels.cache_clear()
    assert len(caplog.records) == 1
    assert "python -m slipstream.kernels.build" in caplog.text


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.build(tmp_path)


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "cannot execute 'cc1plus'")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(build.BuildError, match="cc1plus"):
        build.build(tmp_path)
    assert not list(tmp_path.glob("*.so"))
