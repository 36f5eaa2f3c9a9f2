"""The built library, or a skip with the reason."""

from __future__ import annotations

import pytest

from slipstream.kernels.library import KernelLibrary, KernelsUnavailableError


@pytest.fixture(params=["amx", "avx512", "portable"])
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    """The native kernels, for each instruction set of this machine."""
    try:
        return KernelLibrary(isa=request.param)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
