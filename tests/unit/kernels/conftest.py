"""The built library, or a skip with the reason."""

from __future__ import annotations

import pytest

from slipstream.kernels.library import KernelLibrary
from tests.support.native import native_kernels


@pytest.fixture(params=["amx", "avx512_bf16", "avx512", "portable"])
def library(request: pytest.FixtureRequest) -> KernelLibrary:
    """The native kernels, for each instruction set of this machine."""
    return native_kernels(request.param)
