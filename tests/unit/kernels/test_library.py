"""What happens where the kernels cannot be used."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.kernels import build, library, precheck


@pytest.fixture(scope="module")
def built() -> Path:
    """The library of this installation."""
    path = Path(library.__file__).parent / build.LIBRARY_NAME
    if not path.is_file():
        pytest.skip(f"{path} was not built")
    return path


def test_a_library_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(library.KernelsUnavailableError, match="was not built"):
        library.KernelLibrary(tmp_path / "none.so")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"no library")
    with pytest.raises(library.KernelsUnavailableError, match="cannot be loaded"):
        library.KernelLibrary(path)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.9999])
def test_a_library_that_is_cut_short_is_refused_before_it_is_mapped(
    tmp_path: Path, built: Path, share: float
) -> None:
    content = built.read_bytes()
    path = tmp_path / "short.so"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(library.KernelsUnavailableError, match=f"cut short: .* of {len(content)}"):
        library.KernelLibrary(path)


def test_a_library_for_another_processor_is_refused_by_its_name(
    tmp_path: Path, built: Path
) -> None:
    content = bytearray(built.read_bytes())
    content[18:20] = (8).to_bytes(2, "little")  # MIPS
    path = tmp_path / "other.so"
    path.write_bytes(content)
    with pytest.raises(library.KernelsUnavailableError, match="is for processors of type 8, and"):
        library.KernelLibrary(path)


def test_a_processor_without_the_instructions_is_told_what_it_lacks(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse4_2 avx f16c movbe abm bmi1\n")
    missing = precheck.missing_instructions(cpuinfo)
    assert missing == ["avx2", "fma", "bmi2"]
    monkeypatch.setattr(library, "missing_instructions", lambda: missing)
    with pytest.raises(library.KernelsUnavailableError, match="lacks avx2, fma, bmi2") as caught:
        library.KernelLibrary(built)
    assert "x86-64-v3" in caught.value.hint
    assert "compiler" not in caught.value.hint


def test_what_a_system_does_not_tell_counts_as_there(tmp_path: Path) -> None:
    assert precheck.missing_instructions(tmp_path / "none") == []
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert precheck.missing_instructions(tmp_path / "arm") == []


def test_a_library_that_finds_no_usable_instruction_set_is_not_used(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, path = tmp_path / "old.cpp", tmp_path / "old.so"
    source.write_text(
        'extern "C" {\n'
        f'const char* sl_digest() {{ return "{build.source_digest()}"; }}\n'
        "long sl_packed_bytes() { return 0; }\n"
        "unsigned long sl_read_memory() { return 0; }\n"
        "int sl_best_isa() { return -1; }\n}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    with pytest.raises(library.KernelsUnavailableError, match="lacks AVX2 or FMA") as caught:
        library.KernelLibrary(path)
    assert "AVX2" in caught.value.hint


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


def test_the_build_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert build.main() == 1
    told = capsys.readouterr().err
    assert "error: no C++ compiler was found" in told
    assert "hint: install a C++17 compiler" in told


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("no C++ compiler")
    (tmp_path / "file").write_text("")
    with pytest.raises(build.BuildError, match=f"cannot write to {tmp_path / 'file'}"):
        build.build(tmp_path / "file")


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "cannot execute 'cc1plus'")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(build.BuildError, match="cc1plus"):
        build.build(tmp_path)
    assert not list(tmp_path.glob("*.so"))
