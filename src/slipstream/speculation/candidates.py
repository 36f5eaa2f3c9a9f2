"""From a drafter's logits to children: what the target is likely to draw with the same noise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from slipstream.errors import EngineFailureError
from slipstream.sampling.sampler import RowRequest, Sampler, SamplingError
from slipstream.speculation.confidence import NUM_RIVALS, acceptance_shares

Children = list[tuple[int, float]]
"""(token, share of the parent's acceptance) pairs, the likeliest first."""


def best_children(
    sampler: Sampler,
    logits: Tensor,  # [rows, vocab] float32, -inf for what the drafter cannot propose
    requests: Sequence[RowRequest],
    num_children: int,
) -> list[Children]:
    """The best tokens of each row; none where the request's parameters leave no token.

    Raises:
        SamplingError: The logits are not finite.
    """
    children: list[Children] = [[] for _ in requests]
    rows = list(range(len(requests)))
    while rows:
        asked = [requests[row] for row in rows]
        try:
            candidates = sampler.top_candidates(
                logits if len(rows) == len(requests) else logits[rows],
                asked,
                max(num_children, NUM_RIVALS),
            )
        except SamplingError as error:
            if isinstance(error.error, EngineFailureError):
                raise
            del rows[error.row]
            continue
        shares = acceptance_shares(asked, candidates).tolist()
        for row, ids, row_shares in zip(rows, candidates.ids.tolist(), shares, strict=True):
            pairs = zip(ids[:num_children], row_shares[:num_children], strict=True)
            children[row] = [(token, share) for token, share in pairs if token >= 0]
        break
    return children
