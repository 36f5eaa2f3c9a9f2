"""From a drafter's logits to children: what the target is likely to draw with the same noise, or
draws of the drafter's own where verification wants these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from slipstream.errors import EngineFailureError
from slipstream.sampling.distribution import distribution
from slipstream.sampling.sampler import Sampler, SamplingError, host_rows
from slipstream.speculation.confidence import NUM_RIVALS, acceptance_shares, expected_overlap
from slipstream.speculation.growth import Child, DraftRow
from slipstream.speculation.tree import DraftLaw

Children = list[Child]
"""The likeliest first; at most one where its law is wanted."""


def best_children(
    sampler: Sampler,
    logits: Tensor,  # [rows, vocab] float32, -inf for what the drafter cannot propose
    requests: Sequence[DraftRow],
    num_children: int,
) -> list[Children]:
    """What each row proposes; nothing where the request's parameters leave no token.

    Raises:
        SamplingError: The logits are not finite.
    """
    children: list[Children] = [[] for _ in requests]
    rows: list[int] = []
    for row, request in enumerate(requests):
        if request.wants_law:
            children[row] = _drawn_child(sampler, logits[row : row + 1], request)
        else:
            rows.append(row)
    while rows:
        asked = [requests[row] for row in rows]
        try:
            candidates = sampler.top_candidates(
                logits if len(rows) == len(requests) else logits[rows],
                asked,
                max(num_children, NUM_RIVALS),
            )
        except SamplingError as error:
            _raise_if_ours(error)
            del rows[error.row]
            continue
        shares = acceptance_shares(asked, candidates).tolist()
        for row, ids, row_shares in zip(rows, candidates.ids.tolist(), shares, strict=True):
            pairs = zip(ids[:num_children], row_shares[:num_children], strict=True)
            children[row] = [Child(token, share) for token, share in pairs if token >= 0]
        break
    return children


def _drawn_child(sampler: Sampler, logits: Tensor, request: DraftRow) -> Children:
    """One draw from the row's own distribution, with that distribution."""
    try:
        (token,) = sampler.sample(logits, [request])
        probs = distribution(sampler, host_rows(logits)[0], request)
    except SamplingError as error:
        _raise_if_ours(error)
        return []
    token_ids = np.flatnonzero(probs)
    law = DraftLaw(token_ids, probs[token_ids])
    return [Child(token, expected_overlap(law.probs, request.params.temperature), law)]


def _raise_if_ours(error: SamplingError) -> None:
    if isinstance(error.error, EngineFailureError):
        raise error
