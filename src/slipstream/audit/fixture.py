"""What every kind of golden fixture has in common: a place, a family, checks and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["pass", "fail", "not supported yet"]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison with recorded numbers.

    Attributes:
        name: What was compared.
        error: Largest absolute difference; infinite where shapes differ or something is no number.
        bound: Largest difference that passes.
        num_compared: Calls compared; None where arrays are.
        num_wrong: Values that must be equal and are not.
        note: The first thing that is wrong.
    """

    name: str
    error: float = 0.0
    bound: float = 0.0
    num_compared: int | None = None
    num_wrong: int = 0
    note: str = ""

    @property
    def is_passed(self) -> bool:
        """False also where the error is no number or nothing was compared."""
        return self.error <= self.bound and self.num_wrong == 0 and self.num_compared != 0


@dataclass(frozen=True, slots=True)
class Result:
    """Verdict on one fixture.

    Attributes:
        fixture: Path below the audited folder.
        reason: Why it could not be compared at all.
    """

    family: str
    fixture: str
    verdict: Verdict
    checks: tuple[Check, ...] = ()
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Largest error over all checks; None where nothing was compared."""
        errors = [check.error for check in self.checks]
        return max(errors, key=lambda error: math.inf if math.isnan(error) else error, default=None)


@dataclass(frozen=True, slots=True)
class Fixture:
    """One fixture that was found.

    Attributes:
        family: Model family or drafter that it belongs to.
        run: Recomputes and compares; None where the family is not supported yet. May raise
            `SlipstreamError` or `FixtureError`.
    """

    family: str
    path: Path
    run: Callable[[], list[Check]] | None


class FixtureError(Exception):
    """A fixture's files cannot be read or lack what its kind must have."""


def guarded(run: Callable[[], list[Check]]) -> Callable[[], list[Check]]:
    """Records that lack a field, or arrays of impossible shapes, are the fixture's fault."""

    def guarded_run() -> list[Check]:
        try:
            return run()
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, RuntimeError) as error:
            raise FixtureError(f"a record is not as described: {error!r}") from error

    return guarded_run
