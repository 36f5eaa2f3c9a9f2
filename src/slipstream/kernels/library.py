"""The compiled kernels as a C library: opened, checked, and what it can do here."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.kernels.build import LIBRARY_NAME, source_digest
from slipstream.kernels.precheck import file_defect, missing_instructions
from slipstream.kernels.structs import AttentionShape

if TYPE_CHECKING:
    from slipstream.kernels.memory import WeightMemory

log = logging.getLogger("slipstream.kernels")

ISA_NAMES = ("portable", "avx512", "avx512_bf16", "amx")
_BUILD = "to get them, install a C++17 compiler and run: python -m slipstream.kernels.build"
_OTHER_MACHINE = "they need an x86 processor with AVX2 (level x86-64-v3), or another architecture"


class KernelsUnavailableError(Exception):
    """The library is not there, cannot be loaded here, or is of other sources.

    Attributes:
        hint: What helps.
    """

    def __init__(self, message: str, hint: str = _BUILD) -> None:
        super().__init__(message)
        self.hint = hint


class KernelLibrary:
    """The native kernels, for one instruction set.

    All instruction sets give the same bits; a slower one is for tests and comparisons.

    Args:
        path: The shared library; None = the one next to this module.
        isa: "amx", "avx512_bf16", "avx512" or "portable"; None = the best that is here.
    Raises:
        KernelsUnavailableError: If it cannot be used.
    """

    def __init__(self, path: Path | None = None, isa: str | None = None) -> None:
        path = path or Path(__file__).parent / LIBRARY_NAME
        if not path.is_file():
            raise KernelsUnavailableError(f"{path} was not built")
        if missing := missing_instructions():
            raise KernelsUnavailableError(
                f"the processor lacks {', '.join(missing)}", _OTHER_MACHINE
            )
        try:
            if defect := file_defect(path):
                raise KernelsUnavailableError(f"{path} {defect}")
            self.functions = ctypes.CDLL(str(path))
            digest = self.functions.sl_digest
        except (OSError, AttributeError) as error:
            raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
        digest.restype = ctypes.c_char_p
        if digest().decode() != source_digest():
            raise KernelsUnavailableError(f"{path} was built from other sources than these")
        self.functions.sl_packed_bytes.restype = ctypes.c_int64
        self.functions.sl_read_memory.restype = ctypes.c_uint64
        best = int(self.functions.sl_best_isa())
        if best < 0:
            raise KernelsUnavailableError("the processor lacks AVX2 or FMA", _OTHER_MACHINE)
        if isa is not None and (isa not in ISA_NAMES or ISA_NAMES.index(isa) > best):
            here = ", ".join(ISA_NAMES[: best + 1])
            raise KernelsUnavailableError(f"instruction set {isa!r} is not here; there are {here}")
        self.isa = best if isa is None else ISA_NAMES.index(isa)

    @functools.cached_property
    def weight_memory(self) -> WeightMemory:
        """Where packed weights lie."""
        # Imported here because it brings torch; who asks what there is here does without.
        from slipstream.kernels.memory import WeightMemory

        return WeightMemory()

    @property
    def isa_name(self) -> str:
        """The instruction set in use."""
        return ISA_NAMES[self.isa]

    def attention_isa_name(self, shape: AttentionShape) -> str:
        """The instruction set of the attention kernel that serves this shape."""
        return ISA_NAMES[self.functions.sl_attention_isa(self.isa, ctypes.byref(shape))]


@functools.cache  # one warning per process, and one library
def open_kernels() -> KernelLibrary | None:
    """The native kernels, or None with a warning that says what is lost."""
    try:
        return KernelLibrary()
    except KernelsUnavailableError as error:
        log.warning(
            "native kernels are not in use (%s): answers stay exact, but a step takes several "
            "times as long and quantised weights are held as bfloat16; %s",
            error,
            error.hint,
        )
        return None
