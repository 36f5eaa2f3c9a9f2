"""Draft nets, trees, blocks and acceptance rules against recordings of the published ones."""

from __future__ import annotations

import pytest

from slipstream.audit.golden import find_fixtures, judge
from tests.support.paths import shared_dir


@pytest.mark.parametrize(
    ("folder", "num_fixtures", "least"),
    [
        ("eagle3", 1, 120),
        ("dflash", 2, 80),
        ("dflash2", 2, 200),
        ("dspark", 7, 250),
        ("mtp", 3, 90),
    ],
)
def test_every_recorded_draft_is_reproduced(folder: str, num_fixtures: int, least: int) -> None:
    root = shared_dir("golden", "open", folder)
    results = [judge(fixture, root) for fixture in find_fixtures(root)]
    failures = {
        result.fixture: result.reason or [item for item in result.checks if not item.is_passed]
        for result in results
        if result.verdict != "pass"
    }
    assert not failures
    assert len(results) == num_fixtures
    assert sum(len(result.checks) for result in results) >= least


def test_the_laws_of_acceptance_hold_exactly() -> None:
    root = shared_dir("golden", "open", "verification")
    (fixture,) = find_fixtures(root)
    result = judge(fixture, root)
    assert [check for check in result.checks if not check.is_passed] == []
    exact = [check.error for check in result.checks if "as drawn" not in check.name]
    assert len(exact) > 300
    assert max(exact) < 1e-12
