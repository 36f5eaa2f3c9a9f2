"""How much to draft: one decision per step over all requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """Most a request may draft in this step; zero length asks no drafter."""

    max_draft_len: int
    max_draft_nodes: int


NO_DRAFT = DraftLimit(0, 0)


@dataclass(frozen=True, slots=True)
class StepFeedback:
    """What one step taught about one request.

    Attributes:
        proposed: Drafter that was asked -> nodes of the merged draft that it had proposed.
        tree: The nodes that were verified.
        path: Kept nodes, from the root down.
    """

    request_id: str
    proposed: Mapping[str, int]
    tree: DraftTree
    path: tuple[int, ...]


class LengthController(Protocol):
    """Decides how much is drafted and verified. It may look at anything: exact verification does
    not depend on it, so no decision can change an answer. Verification by rejection needs more:
    whether a node is verified must not depend on its own token."""

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        """Before drafting: what to ask the drafters for, within `bounds`."""
        ...

    def asks(self, request_id: str, drafter: str) -> bool:
        """Before drafting, of each drafter that may propose: whether it is asked."""
        ...

    def prune(
        self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
    ) -> dict[str, DraftTree]:
        """After drafting: which nodes are worth a row.

        Args:
            trees: Request -> its merged draft.
            num_other_rows: Rows that the pass has anyway (anchors and prompt chunks).
            num_tokens: Tokens that the pass draws anyway, for these requests and all others.
        """
        ...

    def observe(
        self,
        feedback: Sequence[StepFeedback],
        rows: int,
        target_s: float,
        draft_s: Mapping[str, float],
    ) -> None:
        """After the step: verified drafts, rows of the pass, its time with sampling, and that of
        each drafter that was asked."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        ...


class FixedController:
    """Always drafts as much as the bounds allow."""

    def limit(self, request_id: str, bounds: DraftLimit) -> DraftLimit:
        return bounds

    def asks(self, request_id: str, drafter: str) -> bool:
        return True

    def prune(
        self, trees: Mapping[str, DraftTree], num_other_rows: int, num_tokens: int
    ) -> dict[str, DraftTree]:
        return dict(trees)

    def observe(
        self,
        feedback: Sequence[StepFeedback],
        rows: int,
        target_s: float,
        draft_s: Mapping[str, float],
    ) -> None:
        pass

    def release(self, request_id: str) -> None:
        pass
