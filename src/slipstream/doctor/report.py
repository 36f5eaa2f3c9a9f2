"""An examination as JSON values and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from slipstream.doctor.diagnosis import Diagnosis
from slipstream.doctor.examine import Examination
from slipstream.doctor.findings import Finding, is_healthy

FORMAT = 1
_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}

Json = dict[str, Any]  # Any: JSON values


def document(found: Examination, about: Mapping[str, Any]) -> Json:  # Any: JSON values
    """Everything, for programs.

    Args:
        about: Provenance.
    """
    return {
        "kind": "slipstream doctor",
        "format": FORMAT,
        **about,
        "is_healthy": is_healthy(found.findings),
        "findings": [asdict(finding) for finding in found.findings],
        "drafters": [
            {
                "name": name,
                "served_length": found.served.get(name),
                "teacher_forced": None
                if (diagnosis := found.diagnoses.get(name)) is None
                else _diagnosis(diagnosis),
            }
            for name in sorted({*found.served, *found.diagnoses})
        ],
    }


def print_report(found: Examination, console: Console, *, has_all: bool) -> None:
    """Findings, then the conventions that were tried on drafters that are not well.

    Args:
        has_all: Show the conventions of drafters that are well, too.
    """
    console.print(_findings_table(found.findings))
    for name, diagnosis in found.diagnoses.items():
        if has_all or not is_healthy(_about(found, name)):
            console.print(_conventions_table(name, diagnosis))
    hints = [finding for finding in found.findings if finding.hint and finding.status != "ok"]
    for finding in hints:
        line = f"{finding.check}: {finding.hint}"
        console.print(f"hint: {line}", highlight=False, markup=False, soft_wrap=True)


def _about(found: Examination, drafter: str) -> list[Finding]:
    return [item for item in found.findings if item.check.startswith(f"{drafter}: ")]


def _findings_table(findings: list[Finding]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("")
    table.add_column("found", overflow="fold")
    for finding in findings:
        style = _STYLES[finding.status]
        table.add_row(finding.check, f"[{style}]{finding.status}[/]", finding.message)
    return table


def _conventions_table(name: str, diagnosis: Diagnosis) -> Table:
    title = f"{name}, teacher-forced over {diagnosis.num_blocks} drafts"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column("read with", overflow="fold")
    for heading in ("length", "first draft", "standard errors"):
        table.add_column(heading, justify="right")
    first = diagnosis.shares[0] if diagnosis.shares else 0.0
    table.add_row("its own conventions", f"{diagnosis.length:.2f}", f"{first:.2f}", "")
    for item in diagnosis.conventions:
        cells = (f"{item.length:.2f}", f"{item.first_share:.2f}", f"{item.num_errors:+.1f}")
        table.add_row(item.name, *cells, style="bold red" if item.is_suspect else None)
    return table


def _diagnosis(diagnosis: Diagnosis) -> Json:
    suspect = diagnosis.suspect
    return {
        "num_drafts": diagnosis.num_blocks,
        "mean_acceptance_length": diagnosis.length,
        "shares": list(diagnosis.shares),
        "known_share": diagnosis.known_share,
        "suspect": None if suspect is None else suspect.name,
        "conventions": [asdict(item) for item in diagnosis.conventions],
    }
