"""A Markov head to start with: which token follows which in the answers, in a few numbers each.

Two random factors of a bias that is zero learn next to nothing in a small budget: each waits for
the other. Counting tells the same at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from slipstream.training.answers import Answer
from slipstream.training.objective import DraftIds

_PRIOR_TOKENS = 20.0  # a token's own successors count beside so many of any token
_ROW_POWER = 0.35  # frequent tokens are approximated more closely than rare ones
_NUM_EXTRA = 16  # columns beside the rank while its directions are looked for
_NUM_TURNS = 3


def markov_start(answers: Iterable[Answer], ids: DraftIds, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of log p(next token | token) as the answers have it, up to a constant per token.

    The first column is log p(next token), the same for all tokens; the others are the best
    approximation of what the token adds: log(1 + count / (prior * p(next token))).

    Args:
        rank: At least 1.
    Returns: [vocab, rank] and [draft_vocab, rank] float32, both equally large.
    """
    tokens, follows = _pairs(answers, ids)
    followed = torch.bincount(follows, minlength=ids.size).double() + 0.5
    frequency = followed / followed.sum()
    seen, row_of = torch.unique(tokens, return_inverse=True)
    pairs, counts = torch.unique(row_of * ids.size + follows, return_counts=True)
    rows, columns = pairs // ids.size, pairs % ids.size
    gains = torch.log1p(counts / (_PRIOR_TOKENS * frequency[columns])).float()
    weights = torch.bincount(row_of, minlength=len(seen)).float().pow(_ROW_POWER)
    matrix = torch.sparse_coo_tensor(
        torch.stack((rows, columns)),
        gains * weights[rows],
        (len(seen), ids.size),
        check_invariants=True,
    ).coalesce()
    left, right = _factors(matrix, rank - 1)
    left = left / weights.unsqueeze(1)
    ratio = _size(right) / _size(left)
    common = frequency.log().float()
    common = common - common.mean()
    size = _size(common).sqrt()
    first, second = torch.zeros(ids.target_size, rank), torch.zeros(ids.size, rank)
    first[:, 0], second[:, 0] = size, common / size
    first[seen, 1 : 1 + left.shape[1]] = left * ratio.sqrt()
    second[:, 1 : 1 + right.shape[1]] = right / ratio.sqrt()
    return first, second


def _pairs(answers: Iterable[Answer], ids: DraftIds) -> tuple[Tensor, Tensor]:
    """Each token with the draft's id of the one behind it, where that is an answer's and known."""
    tokens, follows = [], []
    for answer in answers:
        text = torch.tensor([*answer.prompt_ids[-1:], *answer.response_ids])
        tokens.append(text[:-1])
        follows.append(text[1:])
    known = ids.of(torch.cat(follows))
    is_known = known >= 0
    return torch.cat(tokens)[is_known], known[is_known]


def _factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The nearest product of two [.., rank or fewer] factors. Source: Halko et al. 2011."""
    num_columns = min(rank + _NUM_EXTRA, *matrix.shape)
    generator = torch.Generator().manual_seed(1)
    basis = torch.randn(matrix.shape[1], num_columns, generator=generator)
    for _ in range(_NUM_TURNS):
        across = torch.linalg.qr(torch.sparse.mm(matrix, basis))[0]
        basis = torch.linalg.qr(torch.sparse.mm(matrix.t(), across))[0]
    left, sizes, right = torch.linalg.svd(torch.sparse.mm(matrix, basis), full_matrices=False)
    root = sizes[:rank].sqrt()
    return left[:, :rank] * root, (basis @ right.T)[:, :rank] * root


def _size(x: Tensor) -> Tensor:
    return x.square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
