"""Acceptance as training sees it: along the target's own answers, without drafting for real."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.training.objective import RowResults


@dataclass(slots=True)
class AcceptanceTally:
    """Adds up how often whole beginnings of drafts are accepted.

    Only blocks whose answer goes on for a whole draft are counted, so that depths compare.

    Attributes:
        num_blocks: Blocks counted.
        sampled: [drafts] float64 sum over blocks of the probability that the drafts up to a depth
            are all accepted at temperature 1 (with shared noise; by `rejection` somewhat more).
        greedy: [drafts] float64 blocks whose drafts up to a depth are the answer's tokens; it is
            greedy acceptance where the answers are greedy.
    """

    num_blocks: int
    sampled: Tensor
    greedy: Tensor

    @staticmethod
    def empty(num_drafts: int) -> AcceptanceTally:
        """Nothing counted yet."""
        zeros = torch.zeros(num_drafts, dtype=torch.float64)
        return AcceptanceTally(0, zeros, zeros.clone())

    def add(self, results: RowResults) -> None:
        """Count the blocks of a pass."""
        whole = results.is_valid.all(-1)
        self.num_blocks += int(whole.sum())
        self.sampled += results.acceptance[whole].double().cumprod(-1).sum(0)
        self.greedy += results.is_hit[whole].double().cumprod(-1).sum(0)

    def join(self, other: AcceptanceTally) -> None:
        """Count what another has counted."""
        self.num_blocks += other.num_blocks
        self.sampled += other.sampled
        self.greedy += other.greedy

    def sampled_length(self) -> float:
        """Mean acceptance length at temperature 1, the bonus token included."""
        return self._length(self.sampled)

    def greedy_length(self) -> float:
        """Mean acceptance length of greedy drafts along the answers."""
        return self._length(self.greedy)

    def shares(self, sums: Tensor) -> list[float]:
        """By depth, the share of blocks whose drafts up to there are accepted."""
        return [float(value) / max(self.num_blocks, 1) for value in sums]

    def _length(self, sums: Tensor) -> float:
        return 1.0 + float(sums.sum()) / max(self.num_blocks, 1)
