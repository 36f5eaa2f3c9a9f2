"""Rejection verification of chains: which drafts are kept, and what is drawn after a rejection.

Pure functions on distributions. The drafts must be draws from the given draft distributions, with
uniforms that nothing else was drawn with. Lossless in law: a round's tokens are distributed as
the target's own.

Sums run along one row at a time, so a chain's result does not depend on the chains beside it.

Sources: Leviathan et al. 2023 (arXiv:2211.17192) for the chain rule; Sun et al. 2024
(arXiv:2403.10444) for block verification, which never accepts fewer tokens on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Probs = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChainLaw:
    """What decides about one drafted chain.

    Attributes:
        thresholds: [..., n] draft i is accepted where its uniform is at most threshold i.
        residuals: [..., n + 1, vocab] what the round's last token is drawn from, by the number of
            accepted drafts.
    """

    thresholds: Probs
    residuals: Probs


def acceptance_probs(target_probs: Probs, draft_probs: Probs) -> Probs:
    """min(1, p / q) for every token; NaN for a token that the draft cannot propose.

    Args:
        target_probs, draft_probs: [..., vocab] or of some tokens only.
    """
    ratio = np.full(np.broadcast_shapes(target_probs.shape, draft_probs.shape), np.nan)
    np.divide(target_probs, draft_probs, out=ratio, where=draft_probs > 0.0)
    accepted: Probs = np.minimum(ratio, 1.0)
    return accepted


def residual_probs(target_probs: Probs, draft_probs: Probs, ratio: Probs | None = None) -> Probs:
    """Distribution to draw from after a rejection: max(r * target - draft, 0), normalised.

    Args:
        target_probs, draft_probs: [..., vocab], rows sum to 1.
        ratio: [...] r of block verification; None is 1, the chain rule's.
    Returns: [..., vocab]. A row with no residual mass returns its target row; one whose ratio is
        NaN, which no draft reaches, returns zeros.
    """
    scaled = target_probs if ratio is None else ratio[..., None] * target_probs
    excess = np.maximum(scaled - draft_probs, 0.0)
    mass = excess.sum(-1, keepdims=True)
    residual = np.broadcast_to(target_probs, excess.shape).copy()
    np.divide(excess, mass, out=residual, where=mass > 0.0)
    return np.where(np.isnan(mass), 0.0, residual)


def chain_law(target_probs: Probs, draft_probs: Probs, tokens: Ids) -> ChainLaw:
    """The chain rule: drafts are tested one after the other.

    Args:
        target_probs: [..., n + 1, vocab] in front of each draft and behind the last.
        draft_probs: [..., n, vocab] that each draft was drawn from.
        tokens: [..., n] the drafts.
    """
    thresholds = chain_thresholds(target_probs, draft_probs, tokens)
    residuals = residual_probs(target_probs[..., :-1, :], draft_probs)
    return ChainLaw(thresholds, np.concatenate((residuals, target_probs[..., -1:, :]), -2))


def block_law(target_probs: Probs, draft_probs: Probs, tokens: Ids) -> ChainLaw:
    """Block verification: the longest prefix whose own test passes is kept. See `chain_law`."""
    ratios = block_ratios(target_probs, draft_probs, tokens)
    thresholds = block_thresholds(ratios, target_probs, draft_probs)
    before = np.concatenate((np.ones_like(ratios[..., :1]), ratios), -1)[..., :-1]
    residuals = residual_probs(target_probs[..., :-1, :], draft_probs, before)
    return ChainLaw(thresholds, np.concatenate((residuals, target_probs[..., -1:, :]), -2))


def chain_thresholds(target_probs: Probs, draft_probs: Probs, tokens: Ids) -> Probs:
    """[..., n] probability that each draft is accepted. See `chain_law`."""
    target = _of_tokens(target_probs[..., :-1, :], tokens)
    return acceptance_probs(target, _of_tokens(draft_probs, tokens))


def block_ratios(target_probs: Probs, draft_probs: Probs, tokens: Ids) -> Probs:
    """[..., n] running ratio r_i = min(1, r_(i-1) * p / q) of each prefix; NaN if q is 0."""
    target = _of_tokens(target_probs[..., :-1, :], tokens)
    draft = _of_tokens(draft_probs, tokens)
    step = np.full(draft.shape, np.nan)
    np.divide(target, draft, out=step, where=draft > 0.0)
    ratios = np.empty_like(step)
    ratio: Probs = np.ones(step.shape[:-1])
    for index in range(tokens.shape[-1]):
        ratio = ratios[..., index] = np.minimum(ratio * step[..., index], 1.0)
    return ratios


def block_thresholds(ratios: Probs, target_probs: Probs, draft_probs: Probs) -> Probs:
    """[..., n] probability that the test of each prefix passes.

    Args:
        ratios: [..., n] from `block_ratios`; the others as in `chain_law`.
    """
    inner, last = ratios[..., :-1], ratios[..., -1:]
    scaled = inner[..., None] * target_probs[..., 1:-1, :]
    mass = np.maximum(scaled - draft_probs[..., 1:, :], 0.0).sum(-1)
    total = mass + (1.0 - inner)
    passing = np.ones_like(mass)
    np.divide(mass, total, out=passing, where=total > 0.0)
    passing = np.where(np.isnan(inner), np.nan, passing)
    return np.concatenate((passing, last), -1)


def chain_accepted_len(thresholds: Probs, uniforms: Probs) -> Ids:
    """[...] drafts in front of the first that fails; thresholds and uniforms are [..., n]."""
    passes = (uniforms <= thresholds).astype(np.int64)
    accepted_len: Ids = passes.cumprod(-1).sum(-1)
    return accepted_len


def block_accepted_len(thresholds: Probs, uniforms: Probs) -> Ids:
    """[...] length of the longest prefix whose test passes; 0 where none does."""
    lengths = np.arange(1, thresholds.shape[-1] + 1)
    longest: Ids = ((uniforms <= thresholds) * lengths).max(-1)
    return longest


def dense_probs(token_ids: Ids, probs: Probs, vocab_size: int) -> Probs:
    """A draft distribution over a few tokens as one over all: [..., k] each -> [..., vocab]."""
    dense = np.zeros((*probs.shape[:-1], vocab_size), probs.dtype)
    np.put_along_axis(dense, token_ids, probs, -1)
    return dense


def _of_tokens(of_vocab: Probs, tokens: Ids) -> Probs:
    """[..., n, vocab] at tokens [..., n]."""
    chosen: Probs = np.take_along_axis(of_vocab, tokens[..., None], -1)[..., 0]
    return chosen
