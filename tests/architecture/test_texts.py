"""What no file of the project may hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import REPOSITORY

TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
)
HOME_FOLDER = re.compile(r"/(?:home|Users)/[a-z][\w-]*/")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError)\b")


def project_files() -> Iterator[Path]:
    """Files of the project without what tools and builds leave in hidden or derived folders."""
    for path in REPOSITORY.rglob("*"):
        parts = path.relative_to(REPOSITORY).parts
        is_derived = any(
            part.endswith((".egg-info", "__pycache__"))
            or (part.startswith(".") and part not in (".ci", ".github", ".gitignore"))
            for part in parts
        )
        if not is_derived and parts[0] not in ("build", "dist") and path.is_file():
            yield path


def texts() -> Iterator[tuple[str, str]]:
    for path in project_files():
        if path.suffix in TEXT_SUFFIXES:
            yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    places = (f"{REPOSITORY}/", f"{REPOSITORY.parent / 'shared'}")
    guilty = [
        name
        for name, text in texts()
        if any(place in text for place in places) or HOME_FOLDER.search(text)
    ]
    assert not guilty


def test_no_source_is_left_unfinished() -> None:
    guilty = [
        name
        for name, text in texts()
        if name.startswith("src/") and name.endswith(".py") and UNFINISHED.search(text)
    ]
    assert not guilty


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, text in texts()
        if name.startswith("src/") and text and name.endswith(".py")
        if ast.get_docstring(ast.parse(text)) is None
    ]
    assert not silent


def test_license_is_the_whole_apache_license() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License")
    for part in ("TERMS AND CONDITIONS", "9. Accepting Warranty", "END OF TERMS", "APPENDIX"):
        assert part in text
