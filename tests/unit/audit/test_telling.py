"""What people and programs read of an audit."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from slipstream.audit.findings import Report
from slipstream.audit.fixture import Check, Result
from slipstream.audit.report import (
    check_writable,
    golden_document,
    lossless_document,
    write_json,
)
from slipstream.audit.tables import print_golden, print_lossless
from slipstream.errors import ConfigError
from tests.unit.audit.fake_target import FakeTarget
from tests.unit.audit.test_lossless import PLAN, run, spoil_drafts

FAILED = Result(
    "llama",
    "models/a",
    "fail",
    (
        Check("a.logits", error=float("nan"), bound=2e-4),
        Check("a.greedy tokens", num_compared=48, num_wrong=2, note="token 3 is 5 instead of 6"),
        Check("b.logits", error=1e-5, bound=2e-4),
    ),
)
UNREADABLE = Result("qwen2", "models/b", "fail", reason="no weights")
LISTED = Result("mamba", "models/c", "not supported yet")


def shown_lossless(report: Report) -> str:
    stream = StringIO()
    print_lossless(report, Console(file=stream, width=160), FakeTarget().token_text)
    return stream.getvalue()


def test_the_table_has_a_line_per_setting_and_the_totals() -> None:
    lines = shown_lossless(run(FakeTarget())).splitlines()
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["greedy", "ngram", "cold", "1", "4", "12", "16", "8", "8", "0", "0", "0"]
    assert len(cells) == 10 + 1
    assert cells[-1][0] == "all"
    assert cells[-1][5] == str(sum(int(row[5]) for row in cells[:-1]))


def test_the_first_divergence_is_told_with_both_tokens_and_the_gap() -> None:
    text = shown_lossless(run(FakeTarget(change=spoil_drafts)))
    assert "prompt two, greedy, drafters ngram, cold, concurrency 1" in text
    assert "output token 1 is 9 ('<9>') instead of 2 ('<2>')" in text
    assert "3 ('<3>') and 4 ('<4>'), 0.125 apart" in text


def test_whatever_weakens_the_proof_is_told() -> None:
    report = replace(
        run(FakeTarget()),
        vacuous=("no prefix hit was counted",),
        fingerprints=("fp_1", "fp_2"),
        refused={"bad": "too long"},
        num_drafter_faults=2,
    )
    text = shown_lossless(report)
    assert "Not proven, no prefix hit was counted." in text
    assert "2 different numerics (fp_1, fp_2)" in text
    assert "Left out, prompt bad: too long" in text
    assert "too slow 2 times" in text


def test_the_document_of_an_audit_holds_plan_verdict_and_every_row(tmp_path: Path) -> None:
    report = run(FakeTarget(change=spoil_drafts))
    document = lossless_document(report, PLAN, is_proof=False, about={"provenance": {"x": 1}})
    write_json(document, tmp_path / "out.json")
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["provenance"] == {"x": 1}
    assert read["plan"]["conditions"] == ["cold", "warm", "preempted"]
    assert read["verdict"]["num_divergences"] == report.num_divergences
    assert len(read["rows"]) == len(report.rows)
    assert read["rows"][0]["divergences"][0]["top_two"] == {"token_ids": [3, 4], "gap": 0.125}
    assert read["totals"]["num_tokens"] == sum(row["num_tokens"] for row in read["rows"])


def test_golden_results_are_listed_with_what_is_wrong() -> None:
    stream = StringIO()
    print_golden([FAILED, UNREADABLE, LISTED], Console(file=stream, width=160))
    text = stream.getvalue()
    assert "not supported yet" in text
    assert "models/a: a.logits differ by nan, allowed are 0.0002" in text
    assert "models/a: a.greedy tokens: 2 of 48 differ; token 3 is 5 instead of 6" in text
    assert "b.logits" not in text
    assert "models/b: no weights" in text


def test_the_document_of_golden_results_is_plain_json(tmp_path: Path) -> None:
    document = golden_document([FAILED, LISTED], is_passed=False, about={})
    write_json(document, tmp_path / "out.json")
    first, second = json.loads((tmp_path / "out.json").read_text())["fixtures"]
    assert first["error"] == "nan"
    assert [check["is_passed"] for check in first["checks"]] == [False, False, True]
    assert second["error"] is None


def test_a_result_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(tmp_path / "missing" / "out.json")
