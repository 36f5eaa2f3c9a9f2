"""Imports point down, torch stays behind its wall, the environment is read in two places."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, util
from pathlib import Path

from tests.support.paths import REPOSITORY

TORCH_FREE_PACKAGES = ("config", "protocol", "observability", "server", "tokenization")
TORCH_FREE_MODULES = (
    "kv.pages",
    "kv.radix",
    "kv.cache",
    "engine.scheduler",
    "engine.queue",
    "engine.messages",
    "engine.client",
    "speculation.tree",
    "speculation.drafter",
    "speculation.drafters.ngram",
    "speculation.drafters.suffix",
    "sampling.params",
    "sampling.state",
    "cli.main",
    "cli.options",
    "cli.config",
    "clock",
    "errors",
)
ENVIRONMENT_READERS = ("config", "cli")


def existing_torch_free_modules() -> Iterator[str]:
    for name in TORCH_FREE_PACKAGES:
        package = import_module(f"slipstream.{name}")
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield module.name
    for name in TORCH_FREE_MODULES:
        if util.find_spec(f"slipstream.{name}") is not None:
            yield f"slipstream.{name}"


def test_layers_and_contracts_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_free_modules_load_without_torch() -> None:
    modules = sorted(existing_torch_free_modules())
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "for name in sys.argv[1:]:\n"
        "    import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(name + ' imports torch')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_config_and_the_command_line_read_the_environment() -> None:
    package = REPOSITORY / "src" / "slipstream"
    readers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers <= set(ENVIRONMENT_READERS)


def test_package_markers_are_empty() -> None:
    package = REPOSITORY / "src" / "slipstream"
    markers = [path for path in package.rglob("__init__.py") if path.parent != package]
    assert not [path for path in markers if path.read_text(encoding="utf-8")]
