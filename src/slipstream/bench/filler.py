"""A drafter that always has something to say: for steps with a chosen number of rows."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.tree import ROOT, DraftTree

_SCORE = 0.5


class FillerDrafter:
    """Proposes arbitrary tokens up to both bounds: chains as long as they may be, side by side."""

    name = "filler"
    needs = DrafterNeeds()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        """Token ids from 0 up: no draft has as many nodes as a vocabulary has tokens."""
        return [self._tree(context) for context in contexts]

    def observe(self, observations: Sequence[Observation]) -> None:
        """Learns nothing."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Holds nothing."""

    def memory_bytes(self) -> int:
        """None."""
        return 0

    def _tree(self, context: DraftContext) -> DraftTree:
        nodes = range(context.max_draft_nodes)
        return DraftTree(
            tokens=tuple(nodes),
            parents=tuple(node - 1 if node % context.max_draft_len else ROOT for node in nodes),
            scores=(_SCORE,) * len(nodes),
            sources=(frozenset({self.name}),) * len(nodes),
        )
