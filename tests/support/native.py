"""The native kernels, or a skip with the reason."""

from __future__ import annotations

import pytest

from slipstream.kernels.library import ISA_NAMES, KernelLibrary, KernelsUnavailableError
from tests.support.emulated_tiles import emulate_tiles


def native_kernels(isa: str | None = None) -> KernelLibrary:
    """The built library, for one instruction set or the best that is here."""
    try:
        return find_kernels(isa)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def find_kernels(isa: str | None = None) -> KernelLibrary:
    """The built library; for AMX also where only the tiles are missing, which are then emulated.

    Raises:
        KernelsUnavailableError: If the instruction set is not here.
    """
    library = KernelLibrary()
    if isa != "amx" or library.isa_name != "avx512_bf16":
        return KernelLibrary(isa=isa)
    emulate_tiles()
    library.isa = ISA_NAMES.index("amx")
    return library
