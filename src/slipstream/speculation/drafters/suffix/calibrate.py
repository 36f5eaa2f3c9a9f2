"""From shares of counts to probabilities of acceptance."""

from __future__ import annotations

from collections.abc import Sequence


def calibrated_scores(
    probs: Sequence[float], parents: Sequence[int], match_len: int, *, is_shared: bool
) -> list[float]:
    """Estimated probability that each node is accepted.

    A count of one says little after one token of context and nearly everything after ten; and
    what another output said is less telling than what this text said. The odds that a node is
    right once its parent was are a power law in the odds of its count and in the length of the
    context that leads to it, fitted by logistic regression to benchmarks/replay-drafters.json.

    Args:
        probs, parents: As in `Continuation`: products of count shares along the path.
        match_len: Tokens of context before the first node.
        is_shared: The counts are of other outputs, not of the request's own text.
    """
    scores: list[float] = []
    context_lens: list[int] = []
    weight = 0.12 if is_shared else 0.37
    for prob, parent in zip(probs, parents, strict=True):
        is_first = parent < 0
        share = prob if is_first else min(prob / probs[parent], 1.0)
        context_len = match_len if is_first else context_lens[parent] + 1
        odds = weight * (share / (1.05 - share)) ** 0.4 * context_len**1.07
        scores.append(odds / (1.0 + odds) * (1.0 if is_first else scores[parent]))
        context_lens.append(context_len)
    return scores
