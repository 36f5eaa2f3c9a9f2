"""Rejection verification of chains: which drafts are kept, and what is drawn after a rejection.

Pure functions on distributions. The drafts must be draws from the given draft distributions, with
uniforms that nothing else was drawn with. Lossless in law: a round's tokens are distributed as
the target's own.

Sources: Leviathan et al. 2023 (arXiv:2211.17192) for the chain rule; Sun et al. 2024
(arXiv:2403.10444) for block verification, which never accepts fewer tokens on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChainLaw:
    """What decides about one drafted chain.

    Attributes:
        thresholds: [..., n] draft i is accepted where its uniform is at most threshold i.
        residuals: [..., n + 1, vocab] what the round's last token is drawn from, by the number of
            accepted drafts.
    """

    thresholds: Tensor
    residuals: Tensor


def acceptance_probs(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """min(1, p / q) for every token; NaN for a token that the draft cannot propose.

    Args:
        target_probs, draft_probs: [..., vocab] of any float type, rows sum to 1.
    """
    ratio = (target_probs / draft_probs).clamp(max=1.0)
    return ratio.masked_fill(draft_probs == 0.0, torch.nan)


def residual_probs(
    target_probs: Tensor, draft_probs: Tensor, ratio: Tensor | None = None
) -> Tensor:
    """Distribution to draw from after a rejection: max(r * target - draft, 0), normalised.

    Args:
        target_probs, draft_probs: [..., vocab], rows sum to 1.
        ratio: [...] r of block verification; None is 1, the chain rule's.
    Returns: [..., vocab]. A row with no residual mass returns its target row; one whose ratio is
        NaN, which no draft reaches, returns zeros.
    """
    scaled = target_probs if ratio is None else ratio.unsqueeze(-1) * target_probs
    excess = (scaled - draft_probs).clamp(min=0.0)
    mass = excess.sum(-1, keepdim=True)
    residual = torch.where(mass > 0.0, excess / mass, target_probs)
    return residual.masked_fill(mass.isnan(), 0.0)


def chain_law(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor) -> ChainLaw:
    """The chain rule: drafts are tested one after the other.

    Args:
        target_probs: [..., n + 1, vocab] in front of each draft and behind the last.
        draft_probs: [..., n, vocab] that each draft was drawn from.
        tokens: [..., n] int64 the drafts.
    """
    judged = target_probs[..., :-1, :]
    thresholds = _of_tokens(acceptance_probs(judged, draft_probs), tokens)
    residuals = residual_probs(judged, draft_probs)
    return ChainLaw(thresholds, torch.cat((residuals, target_probs[..., -1:, :]), -2))


def block_law(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor) -> ChainLaw:
    """Block verification: the longest prefix whose own test passes is kept. See `chain_law`."""
    num_drafts = tokens.shape[-1]
    ratios = block_ratios(target_probs, draft_probs, tokens)
    thresholds = block_thresholds(ratios, target_probs, draft_probs)
    before = torch.cat((torch.ones_like(ratios[..., :1]), ratios), -1)[..., :num_drafts]
    residuals = residual_probs(target_probs[..., :-1, :], draft_probs, before)
    return ChainLaw(thresholds, torch.cat((residuals, target_probs[..., -1:, :]), -2))


def block_ratios(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor) -> Tensor:
    """[..., n] running ratio r_i = min(1, r_(i-1) * p / q) of each prefix; NaN if q is 0."""
    target = _of_tokens(target_probs[..., :-1, :], tokens)
    draft = _of_tokens(draft_probs, tokens)
    step = (target / draft).masked_fill(draft == 0.0, torch.nan)
    ratios: list[Tensor] = []
    ratio = torch.ones_like(step[..., 0])
    for index in range(step.shape[-1]):
        ratio = (ratio * step[..., index]).clamp(max=1.0)
        ratios.append(ratio)
    return torch.stack(ratios, -1)


def block_thresholds(ratios: Tensor, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """[..., n] probability that the test of each prefix passes.

    Args:
        ratios: [..., n] from `block_ratios`; the others as in `chain_law`.
    """
    inner, last = ratios[..., :-1], ratios[..., -1:]
    scaled = inner.unsqueeze(-1) * target_probs[..., 1:-1, :]
    mass = (scaled - draft_probs[..., 1:, :]).clamp(min=0.0).sum(-1)
    rest = 1.0 - inner
    passing = torch.where(mass + rest > 0.0, mass / (mass + rest), torch.ones_like(mass))
    passing = passing.masked_fill(inner.isnan(), torch.nan)
    return torch.cat((passing, last), -1)


def chain_accepted_len(thresholds: Tensor, uniforms: Tensor) -> Tensor:
    """[...] drafts in front of the first that fails; thresholds and uniforms are [..., n]."""
    return (uniforms <= thresholds).long().cumprod(-1).sum(-1)


def block_accepted_len(thresholds: Tensor, uniforms: Tensor) -> Tensor:
    """[...] length of the longest prefix whose test passes; 0 where none does."""
    lengths = torch.arange(1, thresholds.shape[-1] + 1, device=thresholds.device)
    return ((uniforms <= thresholds).long() * lengths).amax(-1)


def dense_probs(token_ids: Tensor, probs: Tensor, vocab_size: int) -> Tensor:
    """A draft distribution over a few tokens as one over all: [..., k] each -> [..., vocab]."""
    dense = torch.zeros(*probs.shape[:-1], vocab_size, dtype=probs.dtype, device=probs.device)
    return dense.scatter(-1, token_ids, probs)


def _of_tokens(of_vocab: Tensor, tokens: Tensor) -> Tensor:
    """[..., n, vocab] at tokens [..., n]."""
    return of_vocab.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
