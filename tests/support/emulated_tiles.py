"""AMX tiles for a processor that has none: their instructions trap and are executed here."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

from slipstream.kernels.build import BuildError, find_compiler
from slipstream.kernels.library import KernelsUnavailableError

_SOURCE = Path(__file__).parent / "emulated_tiles.cpp"
_FLAGS = ["-std=c++17", "-O2", "-march=x86-64-v4", "-ffp-contract=off", "-fPIC", "-shared"]


def emulate_tiles() -> None:
    """Let this process run kernels for AMX, as they are compiled.

    Raises:
        KernelsUnavailableError: If it cannot.
    """
    if not _emulation().emulate_tiles():
        raise KernelsUnavailableError("the processor lacks more than tiles of what AMX kernels use")


@functools.cache
def _emulation() -> ctypes.CDLL:
    try:
        compiler = find_compiler()
    except BuildError as error:
        raise KernelsUnavailableError(f"tiles cannot be emulated: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated_tiles.so"
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(path))
