"""Size budgets of STYLE.md, rule 9; ruff holds the one for parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import REPOSITORY

MODULE_LINES = 300
KERNEL_LINES = 400
FUNCTION_LINES = 60  # docstring excluded

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    yield from (REPOSITORY / "src").rglob("*.py")
    yield from (REPOSITORY / "docs").rglob("*.py")


def functions() -> Iterator[tuple[Path, Function]]:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def num_body_lines(function: Function) -> int:
    """Lines of the function from `def` on, without its docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    docstring_lines = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring_lines


def place(path: Path, function: Function) -> str:
    return f"{path.relative_to(REPOSITORY)}:{function.lineno} {function.name}"


def test_modules_are_within_their_budget() -> None:
    too_long = {}
    for path in sources():
        budget = KERNEL_LINES if "kernels" in path.parts else MODULE_LINES
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if num_lines > budget:
            too_long[str(path.relative_to(REPOSITORY))] = num_lines
    assert not too_long


def test_functions_are_within_their_budget() -> None:
    too_long = {
        place(path, function): num_body_lines(function)
        for path, function in functions()
        if num_body_lines(function) > FUNCTION_LINES
    }
    assert not too_long
