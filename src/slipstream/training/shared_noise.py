"""How often draft and target draw the same token, when both add the same noise to their logits."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 1e-20


def shared_acceptance(draft: Tensor, target: Tensor) -> Tensor:
    """Probability that both draw the same token.

    Token i is drawn where E_i / p_i is smallest, E being independent exponential variables, so
    both draw i where E_j >= E_i max(p_j / p_i, q_j / q_i) for all j, which has the probability
    1 / sum_j max(p_j / p_i, q_j / q_i).

    Args:
        draft, target: [rows, k] probabilities of k tokens; what is missing to 1 counts as one
            more token that never agrees.
    Returns: [rows]; at most sum min(p, q), which drafting by rejection reaches.

    Source: Daliri, Musco and Suresh 2024 (arXiv:2408.07978), section 3.
    """
    p, q = _with_rest(target), _with_rest(draft)
    # p_i q_i times the sum is q_i sum p_j over tokens whose q_j / p_j is not above that of i,
    # and p_i sum q_j over the others; sorted by that quotient both are running sums.
    order = (q.detach() / p.clamp_min(_SMALLEST)).argsort(-1)
    sorted_p, sorted_q = p.gather(-1, order), q.gather(-1, order)
    above = sorted_q.sum(-1, keepdim=True) - sorted_q.cumsum(-1)
    largest = sorted_q * sorted_p.cumsum(-1) + sorted_p * above.clamp_min(0.0)
    both = sorted_p * sorted_q / largest.clamp_min(_SMALLEST)
    is_rest = order == p.shape[-1] - 1
    return both.masked_fill(is_rest, 0.0).sum(-1)


def _with_rest(probs: Tensor) -> Tensor:
    return torch.cat((probs, (1.0 - probs.sum(-1, keepdim=True)).clamp_min(0.0)), -1)
