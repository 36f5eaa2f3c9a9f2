"""The results of audits as JSON values."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slipstream.audit.findings import Divergence, Report, Row
from slipstream.audit.fixture import Result
from slipstream.audit.plan import SAMPLINGS, AuditPlan
from slipstream.errors import ConfigError

FORMAT = 1

Json = dict[str, Any]  # Any: JSON values


def check_writable(path: Path) -> None:
    """Find out before a long run whether its result can be written.

    Raises:
        ConfigError: The folder is missing or closed.
    """
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(
            f"{path} cannot be written", hint="name a file in a folder that exists and is yours"
        )


def write_json(document: Json, path: Path) -> None:
    """Write a document for people and programs."""
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def lossless_document(
    report: Report, plan: AuditPlan, *, is_proof: bool, about: Mapping[str, Any]
) -> Json:
    """A losslessness audit.

    Args:
        is_proof: The verdict, which also says what the exit status was.
        about: Provenance and the target's facts.
    """
    return {
        "kind": "slipstream audit lossless",
        "format": FORMAT,
        **about,
        "plan": {
            "samplings": {name: _sampling(name) for name in plan.samplings},
            "concurrencies": list(plan.concurrencies),
            "drafters": [item.label for item in plan.drafter_sets],
            "conditions": [condition.label for condition in plan.conditions],
            "max_tokens": plan.max_tokens,
            "seed": plan.seed,
        },
        "verdict": {
            "is_proof": is_proof,
            "num_divergences": report.num_divergences,
            "vacuous": list(report.vacuous),
            "fingerprints": list(report.fingerprints),
            "num_drafter_faults": report.num_drafter_faults,
            "refused_prompts": dict(report.refused),
        },
        "totals": _totals(report.rows),
        "rows": [_row(row) for row in report.rows],
    }


def golden_document(
    results: Sequence[Result], *, is_passed: bool, about: Mapping[str, Any]
) -> Json:
    """An audit of golden fixtures."""
    return {
        "kind": "slipstream audit golden",
        "format": FORMAT,
        **about,
        "is_passed": is_passed,
        "fixtures": [_fixture(result) for result in results],
    }


def _sampling(name: str) -> Json:
    params = SAMPLINGS[name]
    names = ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    numbers = {name: getattr(params, name) for name in names}
    return numbers | {"logit_bias": dict(params.logit_bias)}


def _totals(rows: Sequence[Row]) -> Json:
    return {
        "num_prompts": sum(row.num_prompts for row in rows),
        "num_tokens": sum(row.num_tokens for row in rows),
        "num_drafted": sum(row.num_drafted for row in rows),
        "num_accepted": sum(row.num_accepted for row in rows),
        "num_rejected": sum(row.num_rejected for row in rows),
        "num_prefix_hits": sum(row.num_prefix_hits for row in rows),
        "num_preemptions": sum(row.num_preemptions or 0 for row in rows),
    }


def _row(row: Row) -> Json:
    return {
        "sampling": row.setting.sampling,
        "concurrency": row.setting.concurrency,
        "drafters": row.setting.drafters.label,
        "condition": row.setting.condition.label,
        **_totals([row]),
        "num_preemptions": row.num_preemptions,
        "law_distance": row.law_distance,
        "divergences": [_divergence(item) for item in row.divergences],
    }


def _divergence(item: Divergence) -> Json:
    document = asdict(item)
    if item.top_two is not None:
        document["top_two"] = {
            "token_ids": list(item.top_two.token_ids),
            "gap": _number(item.top_two.gap),
        }
    return document


def _fixture(result: Result) -> Json:
    return {
        "family": result.family,
        "fixture": result.fixture,
        "verdict": result.verdict,
        "error": None if result.error is None else _number(result.error),
        "reason": result.reason,
        "checks": [
            {**asdict(check), "error": _number(check.error), "is_passed": check.is_passed}
            for check in result.checks
        ],
    }


def _number(value: float) -> float | str:
    """JSON has no infinity and no "not a number"; they are written as words."""
    return value if math.isfinite(value) else str(value)
