"""Verification is sampling: run the sampler along the tree, keep while the tree has its token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.sampling.state import SamplingState, advance
from slipstream.speculation.tree import ROOT, DraftTree


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


def verify(sampler: Sampler, logits: Tensor, candidates: Sequence[Candidate]) -> list[Verdict]:
    """Walk every tree with the sampler.

    Rows whose distribution does not depend on earlier tokens are all sampled in one batch; the
    others are sampled level by level, because the state at a node is known only after its parent.

    Args:
        logits: [rows, vocab] float32, the target's rows of all candidates.
    """
    walks = [_Walk(candidate) for candidate in candidates]
    _sample_ahead(sampler, logits, [walk for walk in walks if not walk.needs_state])
    pending = list(walks)
    while pending:
        stateful = [walk for walk in pending if walk.needs_state]
        drawn = _sample(
            sampler,
            logits,
            [walk.request() for walk in stateful],
            [walk.row() for walk in stateful],
        )
        for walk, result in zip(stateful, drawn, strict=True):
            walk.drawn[walk.node] = result
        pending = [walk for walk in pending if walk.descend()]
    return [walk.verdict() for walk in walks]


class _Walk:
    """Position of one candidate's walk from the root towards the bonus token."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.needs_state = candidate.params.needs_state
        self.state = candidate.state
        self.node = ROOT
        self.drawn: dict[int, int | SamplingError] = {}
        self._children: dict[tuple[int, int], int] = {
            (parent, token): node
            for node, (parent, token) in enumerate(
                zip(candidate.tree.parents, candidate.tree.tokens, strict=True)
            )
        }
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

    def descend(self) -> bool:
        """Take the token drawn at this node; whether a child carries it and the walk goes on."""
        drawn = self.drawn[self.node]
        if isinstance(drawn, SamplingError):
            self._fault = drawn.error
            return False
        self._tokens.append(drawn)
        self._rows.append(self.row())
        child = self._children.get((self.node, drawn))
        if child is None:
            return False
        self.state = advance(self.candidate.params, self.state, drawn)
        self._path.append(child)
        self.node = child
        return True

    def verdict(self) -> Verdict:
        return Verdict(tuple(self._tokens), tuple(self._path), tuple(self._rows), self._fault)


def _sample_ahead(sampler: Sampler, logits: Tensor, walks: Sequence[_Walk]) -> None:
    """Sample all rows of stateless walks in one call: no row depends on another's result."""
    places: list[tuple[_Walk, int]] = []
    requests: list[RowRequest] = []
    rows: list[int] = []
    for walk in walks:
        candidate = walk.candidate
        for node, depth in zip(
            range(ROOT, len(candidate.tree)), (0, *candidate.tree.depths), strict=True
        ):
            places.append((walk, node))
            rows.append(candidate.row(node))
            requests.append(
                RowRequest(
                    candidate.params, candidate.state, candidate.seed, candidate.position + depth
                )
            )
    for (walk, node), result in zip(places, _sample(sampler, logits, requests, rows), strict=True):
        walk.drawn[node] = result


def _sample(
    sampler: Sampler, logits: Tensor, requests: Sequence[RowRequest], rows: Sequence[int]
) -> list[int | SamplingError]:
    if not rows:
        return []
    is_everything = len(rows) == len(logits) and list(rows) == list(range(len(rows)))
    return sampler.outcomes(logits if is_everything else logits[list(rows)], requests)
