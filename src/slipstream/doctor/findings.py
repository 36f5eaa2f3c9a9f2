"""What a doctor has to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.errors import SlipstreamError

Status = Literal["ok", "warning", "wrong", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        check: What was looked at, such as "kernels" or "drafter dspark: files".
        status: `wrong` makes the exit status 1; `warning` costs speed or some requests.
        message: What was found.
        hint: What to do next.
    """

    check: str
    status: Status
    message: str
    hint: str | None = None


def wrong(check: str, error: SlipstreamError) -> Finding:
    """A check that ended in an error."""
    return Finding(check, "wrong", error.message, error.hint)


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.status != "wrong" for finding in findings)
