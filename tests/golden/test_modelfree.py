"""Our model-free drafters propose what the published ones do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from slipstream.audit.fixture import Check
from slipstream.audit.golden_modelfree import ngram_checks, suffix_checks
from tests.support.paths import shared_dir


def checks(name: str) -> Mapping[str, Check]:
    path = shared_dir("golden", "open", "modelfree", name)
    records: list[Any] = json.loads(path.read_text(encoding="utf-8"))  # Any: JSON values
    found = ngram_checks(records) if name == "ngram.json" else suffix_checks(records)
    return {check.name: check for check in found}


@pytest.mark.parametrize(
    ("name", "check", "least"),
    [
        ("ngram.json", "longest match, earliest place", 100),
        ("ngram.json", "first leftmost match", 80),
        ("suffix.json", "chains", 30),
        ("suffix.json", "trees", 10),
        ("suffix.json", "probabilities, scores", 100),
    ],
)
def test_every_recorded_proposal_is_reproduced(name: str, check: str, least: int) -> None:
    compared = checks(name)[check]
    assert compared.is_passed, compared
    assert compared.num_compared is not None
    assert compared.num_compared > least
