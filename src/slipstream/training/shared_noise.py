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
    products = p.unsqueeze(-1) * q.unsqueeze(-2)  # [rows, j, i] = p_j q_i
    largest = torch.maximum(products, products.transpose(-1, -2)).sum(-2)
    return ((p * q) / largest.clamp_min(_SMALLEST))[..., :-1].sum(-1)


def _with_rest(probs: Tensor) -> Tensor:
    return torch.cat((probs, (1.0 - probs.sum(-1, keepdim=True)).clamp_min(0.0)), -1)
