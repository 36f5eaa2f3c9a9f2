"""Compiles the native kernels: `python -m slipstream.kernels.build`, or with the installation.

Needs a C++17 compiler and nothing else: neither torch nor Slipstream's other modules are imported,
so that it runs in a build environment.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
LIBRARY_NAME = "libslipstream_kernels.so"
_COMPILERS = ("g++", "c++", "clang++")
# No contraction: where a product and a sum are fused is written in the source, so that builds for
# different instruction sets compute the same bits.
_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno"]
_FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
_FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # GCC's own intrinsics cause these


class BuildError(Exception):
    """There is no compiler, it failed, or the library cannot be written; the message says why."""


@dataclass(frozen=True)
class _Unit:
    """One object file: a source, its instruction set and its definitions."""

    source: str
    march: str | None
    defines: tuple[str, ...] = ()


def source_digest() -> str:
    """16 hex digits that change with every source and flag; a library carries those it is of."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    digest.update(Path(__file__).read_bytes())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(folder: Path) -> Path:
    """Compile the library into `folder`.

    Returns: Its path.
    Raises:
        BuildError: If there is no compiler, it fails, or `folder` cannot be written to.
    """
    try:
        return _build(folder)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error.strerror or error}") from error


def find_compiler() -> str:
    """The path of a C++ compiler.

    Raises:
        BuildError: If there is none.
    """
    for name in _COMPILERS:
        if path := shutil.which(name):
            return path
    raise BuildError(f"no C++ compiler was found (looked for {', '.join(_COMPILERS)})")


def _build(folder: Path) -> Path:
    compiler = find_compiler()
    target = folder / LIBRARY_NAME
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = [Path(scratch) / f"{index}.o" for index in range(len(_units()))]
        commands = [
            _compile_command(compiler, unit, to) for unit, to in zip(_units(), objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        linked = Path(scratch) / LIBRARY_NAME
        _run([compiler, "-shared", "-fopenmp", *map(str, objects), "-o", str(linked)])
        linked.replace(target)  # at once: a process that starts meanwhile sees the old or the new
    return target


def _units() -> list[_Unit]:
    products, int8 = "linear_vector.cpp", "linear_int8_vector.cpp"
    drawing = ("draw.cpp", "candidates.cpp")
    drafting = ("draft_walk.cpp", "draft_block.cpp", "draft_chain.cpp")
    passes = ("attention_units.cpp", "pack.cpp", "layers.cpp", "pass.cpp")
    vector_units = (products, "attention.cpp", "pointwise.cpp", "delta.cpp", *drawing)
    portable_units = (*vector_units, int8)
    plain_units = (*passes, *drafting, "bandwidth.cpp", "library.cpp")
    if platform.machine().lower() not in ("x86_64", "amd64"):
        plain = [_Unit(name, None, ("SL_VARIANT=portable",)) for name in portable_units]
        return [*plain, *(_Unit(source, None) for source in plain_units)]
    v3 = "x86-64-v3"
    amx_units = ("linear_amx.cpp", "linear_int8_amx.cpp")
    halves = "attention_bf16.cpp"
    return [
        *(_Unit(source, "sapphirerapids") for source in amx_units),
        _Unit(halves, "sapphirerapids", ("SL_VARIANT=amx",)),
        *(_Unit(source, "x86-64-v4", ("SL_VARIANT=avx512",)) for source in vector_units),
        *(  # the first that has bf16 instructions
            _Unit(source, "cooperlake", ("SL_VARIANT=avx512_bf16",))
            for source in (products, halves)
        ),
        _Unit(int8, "cascadelake", ("SL_VARIANT=vnni",)),  # the least that has AVX-512 VNNI
        *(_Unit(source, v3, ("SL_VARIANT=portable",)) for source in portable_units),
        *(_Unit(source, v3) for source in plain_units),
    ]


def _compile_command(compiler: str, unit: _Unit, target: Path) -> list[str]:
    march = [f"-march={unit.march}"] if unit.march else []
    defines = [f"-D{define}" for define in (*unit.defines, f'SL_DIGEST="{source_digest()}"')]
    source = SOURCES / unit.source
    return [compiler, *_FLAGS, *march, *defines, "-c", str(source), "-o", str(target)]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def main() -> int:
    """Build next to this module."""
    try:
        path = build(Path(__file__).parent)
    except BuildError as error:
        hint = "install a C++17 compiler, for example g++ 11, as a user who may write there"
        sys.stderr.write(f"error: {error}\nhint: {hint}\n")
        return 1
    sys.stdout.write(f"built {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
