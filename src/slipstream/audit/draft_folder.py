"""A folder with a target, drafts for it, and what was recorded with them.

Which draft an array was recorded with is told by shapes, and where several fit, by which of them
computes it; no name is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.audit.fixture import Check, FixtureError
from slipstream.errors import SlipstreamError
from slipstream.models.drafts.load import describe_checkpoint
from slipstream.models.drafts.read import DraftCheckpoint
from slipstream.models.load import is_supported
from slipstream.weights.open import open_checkpoint


@dataclass(frozen=True, slots=True)
class NamedDraft:
    """A draft checkpoint of the folder."""

    path: Path
    described: DraftCheckpoint


@dataclass(frozen=True, slots=True)
class DraftFolder:
    """What was found.

    Attributes:
        target: Folder of the only model that is no draft.
        problems: Why sub-folders could not be read.
    """

    target: Path
    drafts: tuple[NamedDraft, ...]
    problems: tuple[str, ...]

    def best_of(
        self,
        drafts: Sequence[NamedDraft],
        recorded: Path,
        checks_of: Callable[[NamedDraft], list[Check]],
    ) -> list[Check]:
        """The comparisons with the draft that agrees best.

        Raises:
            FixtureError: There is no draft to choose from.
        """
        if not drafts:
            reasons = f" ({'; '.join(self.problems)})" if self.problems else ""
            raise FixtureError(
                f"{recorded.name} was recorded with a draft that is not in the folder{reasons}"
            )
        results: list[list[Check]] = []
        for draft in drafts:
            results.append(checks_of(draft))
            if all(check.is_passed for check in results[-1]):
                return results[-1]
        return min(results, key=_disagreement)


def read_draft_folder(folder: Path) -> DraftFolder | None:
    """The models in the sub-folders of `folder`; None unless there are a target and a draft."""
    targets: list[Path] = []
    drafts: list[NamedDraft] = []
    problems: list[str] = []
    for child in sorted(path for path in folder.iterdir() if (path / "config.json").is_file()):
        try:
            checkpoint = open_checkpoint(child)
            described = describe_checkpoint(checkpoint)
        except SlipstreamError as error:
            problems.append(f"{child.name}: {error.message}")
            continue
        if described is not None:
            drafts.append(NamedDraft(child, described))
        elif is_supported(checkpoint.config):
            targets.append(child)
    if len(targets) != 1 or not (drafts or problems):
        return None
    return DraftFolder(targets[0], tuple(drafts), tuple(problems))


def _disagreement(checks: Sequence[Check]) -> tuple[int, float]:
    failed = [check for check in checks if not check.is_passed]
    return len(failed), max((check.error for check in failed), default=math.inf)
