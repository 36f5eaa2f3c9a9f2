"""The native kernels, or a skip with the reason."""

from __future__ import annotations

import pytest

from slipstream.kernels.library import KernelLibrary, KernelsUnavailableError


def native_kernels(isa: str | None = None) -> KernelLibrary:
    """The built library, for one instruction set or the best that is here."""
    try:
        return KernelLibrary(isa=isa)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
