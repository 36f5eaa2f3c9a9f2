"""The table of known bugs and the tests that it names agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.paths import REPOSITORY

FOLDER = Path(__file__).parent
TABLE = REPOSITORY / "docs" / "concepts" / "known-bugs.md"
REPORT = re.compile(r"#\d+|Source: |Derived from ")


def documented_tests() -> dict[str, dict[str, str]]:
    """Topic -> test -> docstring."""
    return {
        path.stem.removeprefix("test_known_bugs_"): {
            node.name: ast.get_docstring(node) or ""
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
        for path in FOLDER.glob("test_known_bugs_*.py")
        if path != Path(__file__)
    }


def rows() -> list[list[str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if re.match(r"\| \d+ \|", line)
    ]


def test_every_row_names_a_test_that_exists_or_says_why_there_is_none() -> None:
    tests = documented_tests()
    assert [int(row[0]) for row in rows()] == list(range(1, 82))
    for _, _, _, place in rows():
        named = re.fullmatch(r"(\w+): `(test_\w+)`", place)
        if named:
            assert named[2] in tests[named[1]], place
        else:
            assert place.endswith(".")


def test_every_test_of_a_known_bug_names_its_report() -> None:
    for tests in documented_tests().values():
        assert not [name for name, docstring in tests.items() if not REPORT.search(docstring)]


def test_the_reports_of_a_row_stand_in_its_test() -> None:
    tests = documented_tests()
    for _, reports, _, place in rows():
        named = re.fullmatch(r"(\w+): `(test_\w+)`", place)
        numbers = re.findall(r"#\d+", reports)
        if named and numbers:
            assert numbers[0] in tests[named[1]][named[2]], f"{numbers[0]} in {named[2]}"
