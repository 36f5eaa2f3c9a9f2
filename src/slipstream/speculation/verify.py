"""Verification is sampling: run the sampler along the tree, keep while the tree has its token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from slipstream.errors import RequestError
from slipstream.sampling.native_rows import NO_NODES, Int32Array
from slipstream.sampling.noise import FloatArray
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import (
    RowRequest,
    Sampler,
    SamplingError,
    goes_by_row,
    host_rows,
)
from slipstream.sampling.state import SamplingState, advance
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request's draft beside the rows of the target's logits that judge it.

    Attributes:
        tree: The verified nodes.
        first_row: Row of the root's logits; node i has row first_row + 1 + i.
        position: Index in the sequence of the token that the root's row predicts.
        params, state, seed: Arguments of the sampler at the root.
    """

    tree: DraftTree
    first_row: int
    position: int
    params: SamplingParams
    state: SamplingState
    seed: int

    def row(self, node: int) -> int:
        """Row of the logits that follow `node` (-1 = the root)."""
        return self.first_row + 1 + node


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target itself says, along the kept path.

    Attributes:
        tokens: Kept draft tokens, then the bonus token or correction; at least one token,
            unless `fault` is set.
        path: Kept nodes from the root down; len(tokens) - 1 of them.
        rows: Row of the logits that each token was drawn from.
        fault: What the request fails with, where the row after these tokens has no token to draw.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]
    rows: tuple[int, ...]
    fault: RequestError | None = None


def verify(
    sampler: Sampler, logits: Tensor | FloatArray, candidates: Sequence[Candidate]
) -> list[Verdict]:
    """Walk every tree with the sampler, all trees together.

    Only rows that a walk reaches are sampled: behind the first token that the tree lacks, nothing
    counts.

    Args:
        logits: [rows, vocab] float32, the target's rows of all candidates.
    """
    rows = host_rows(logits)
    walks = [_Walk(candidate) for candidate in candidates]
    num_rows = sum(1 + len(candidate.tree) for candidate in candidates)
    is_by_row = goes_by_row([candidate.params for candidate in candidates], num_rows)
    pending = walks
    while pending:
        drawn = sampler.walk(
            rows,
            [walk.row() for walk in pending],
            [walk.request() for walk in pending],
            None if is_by_row else [walk.nodes() for walk in pending],
        )
        pending = [walk for walk, steps in zip(pending, drawn, strict=True) if walk.follow(steps)]
    return [walk.verdict() for walk in walks]


class _Walk:
    """Position of one candidate's walk from the root towards the bonus token."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.state = candidate.state
        self.node = ROOT
        self._tokens: list[int] = []
        self._path: list[int] = []
        self._rows: list[int] = []
        self._fault: RequestError | None = None

    def row(self) -> int:
        return self.candidate.row(self.node)

    def request(self) -> RowRequest:
        return RowRequest(
            params=self.candidate.params,
            state=self.state,
            seed=self.candidate.seed,
            position=self.candidate.position + len(self._tokens),
        )

    def nodes(self) -> Int32Array:
        """How the walk may go on without a look at what it has drawn."""
        tree = self.candidate.tree
        if tree is EMPTY_TREE or self.node != ROOT or self.candidate.params.needs_state:
            return NO_NODES
        return np.array((tree.tokens, tree.parents), dtype=np.int32)

    def follow(self, steps: Sequence[int | SamplingError]) -> bool:
        """Take what was drawn from here on; whether the walk goes on behind it."""
        return all(self.descend(drawn) for drawn in steps)

    def descend(self, drawn: int | SamplingError) -> bool:
        """Take the token drawn at this node; whether a child carries it and the walk goes on."""
        if isinstance(drawn, SamplingError):
            self._fault = drawn.error
            return False
        candidate = self.candidate
        self._tokens.append(drawn)
        self._rows.append(candidate.row(self.node))
        child = candidate.tree.child(self.node, drawn)
        if child is None:
            return False
        self.state = advance(candidate.params, self.state, drawn)
        self._path.append(child)
        self.node = child
        return True

    def verdict(self) -> Verdict:
        return Verdict(tuple(self._tokens), tuple(self._path), tuple(self._rows), self._fault)
