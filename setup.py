"""Builds the native kernels with the package; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

_KERNELS = Path(__file__).parent / "src" / "slipstream" / "kernels"


def _builder() -> ModuleType:
    """kernels/build.py by its path: the package's own dependencies are not there yet."""
    spec = importlib.util.spec_from_file_location("kernels_build", _KERNELS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildWithKernels(build_py):
    """Compiles the kernels beside the modules; without a compiler the package works, slowly."""

    def run(self) -> None:
        """Copy modules, then compile (in place for an editable installation)."""
        super().run()
        builder = _builder()
        folder = Path(self.build_lib) / "slipstream" / "kernels"
        try:
            builder.build(_KERNELS if self.editable_mode else folder)
        except builder.BuildError as error:
            self.warn(f"the native kernels were not built, torch will do their work: {error}")


class PlatformDistribution(Distribution):
    """A wheel with a shared library in it fits one platform."""

    def has_ext_modules(self, *_: Any) -> bool:
        """Say so."""
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
