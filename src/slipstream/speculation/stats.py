"""Counters of what speculation did for one request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slipstream.speculation.tree import DraftTree


@dataclass(slots=True)
class AcceptanceCounter:
    """Counts drafted and kept tokens; what a stop cut off is counted as not accepted.

    Positions are depths: index 0 is the first draft token.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    drafted_per_pos: list[int] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)
    histogram: list[int] = field(default_factory=list)
    by_drafter: dict[str, int] = field(default_factory=dict)

    def observe(self, tree: DraftTree, kept_path: Iterable[int], num_emitted: int) -> None:
        """Count one step that verified `tree`, kept `kept_path` and emitted `num_emitted`."""
        self.num_steps += 1
        if not tree:
            return
        path = tuple(kept_path)
        self.num_drafts += 1
        self.num_draft_tokens += len(tree)
        self.num_accepted_tokens += len(path)
        self.num_emitted_tokens += num_emitted
        for depth in range(tree.depth):
            _add(self.drafted_per_pos, depth)
        for depth, node in enumerate(path):
            _add(self.accepted_per_pos, depth)
            for source in tree.sources[node]:
                self.by_drafter[source] = self.by_drafter.get(source, 0) + 1
        _add(self.histogram, len(path))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafted steps: the bonus token is included; 1.0 without drafts."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0


def _add(counts: list[int], index: int) -> None:
    while len(counts) <= index:
        counts.append(0)
    counts[index] += 1
