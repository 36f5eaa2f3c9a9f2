"""The generator of docs/reference: pages say what the code says, and staleness is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs import generate

from slipstream.config.fields import settings
from slipstream.observability.catalogue import CATALOGUE
from slipstream.protocol.fields import REQUEST_FIELDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    assert generate.main([], folder) == 0
    return folder


def test_written_pages_are_fresh(folder: Path) -> None:
    assert generate.main(["--check"], folder) == 0


def test_changed_and_missing_pages_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in folder.iterdir():
        (tmp_path / page.name).write_bytes(page.read_bytes())
    (tmp_path / "config.md").write_text("old", encoding="utf-8")
    (tmp_path / "errors.md").unlink()
    assert generate.main(["--check"], tmp_path) == 1
    assert "stale: config.md, errors.md" in capsys.readouterr().err


def test_unknown_argument_is_refused(tmp_path: Path) -> None:
    assert generate.main(["--chek"], tmp_path) == 2
    assert not list(tmp_path.iterdir())


def test_every_setting_is_in_the_reference(folder: Path) -> None:
    page = (folder / "config.md").read_text(encoding="utf-8")
    names = {setting.path.rpartition(".")[2] for setting in settings()}
    assert not [name for name in names if f"| `{name}` |" not in page]


def test_every_metric_is_in_the_reference(folder: Path) -> None:
    page = (folder / "metrics.md").read_text(encoding="utf-8")
    assert not [spec.name for spec in CATALOGUE if f"`{spec.full_name}`" not in page]


def test_every_request_field_is_in_the_reference(folder: Path) -> None:
    page = (folder / "http.md").read_text(encoding="utf-8")
    assert not [spec.name for spec in REQUEST_FIELDS if f"| `{spec.name}` |" not in page]


def test_cells_keep_the_table_whole() -> None:
    text = generate.table(("a", "b"), [("x | y", "two\nlines")])
    assert text.splitlines()[2] == "| x \\| y | two lines |"
