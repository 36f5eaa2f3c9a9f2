"""The loss of a draft net's head, without keeping its logits.

Logits are the widest thing in a training by far: 8,192 or more numbers a row. Their loss and its
gradient are therefore computed together, a few rows at a time, and only gradients of the head's
inputs and weights are kept. (As Liger's fused linear cross entropy, arXiv:2410.10989.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.training.settings import LossSettings
from slipstream.training.shared_noise import shared_acceptance

_CHUNK_ROWS = 256
_SMALLEST_PROB = 1e-20
_LOGIT_RANGE = 60.0  # exp(-60) beside 1 teaches nothing


@dataclass(frozen=True, slots=True)
class HeadTargets:
    """What rows should predict, in ids of the draft's own vocabulary.

    Attributes:
        labels: [rows] int64 the token that follows; -1 where the draft does not know it.
        top_ids: [rows, k] int64 the target's likeliest tokens; -1 where the draft lacks one.
        top_probs: [rows, k] float32 their probabilities; anything where the id is -1.
        weights: [rows] float32 weight of the row; they need not sum to 1.
    """

    labels: Tensor
    top_ids: Tensor
    top_probs: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class LossScales:
    """What a row's loss is made of.

    Attributes:
        label: Of -log draft(label).
        soft: Of -sum target log draft over the target's likeliest tokens, normalised among those
            that the draft knows.
        distance: Of the L1 distance between draft and target, 2 - 2 sum min(draft, target), over
            the target's likeliest tokens.
        shared: Of the probability that draft and target draw different tokens with the same noise,
            see `shared_acceptance`; what lies outside the target's likeliest tokens is one token.
    """

    label: float = 0.0
    soft: float = 0.0
    distance: float = 0.0
    shared: float = 0.0

    @staticmethod
    def of(losses: LossSettings) -> LossScales:
        """Those of a run's settings."""
        return LossScales(losses.label, losses.soft, losses.distance, losses.shared)


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """Attributes:
    loss: [] float32 sum of weights * losses; differentiable.
    acceptance: [rows] float32 see `shared_acceptance`: the probability that a draft is accepted.
    best: [rows] int64 the draft's own likeliest token.
    """

    loss: Tensor
    acceptance: Tensor
    best: Tensor


def head_loss(
    inputs: Sequence[Tensor],
    matrices: Sequence[Tensor],
    targets: HeadTargets,
    scales: LossScales,
) -> HeadLoss:
    """Loss of logits = sum of inputs[i] @ matrices[i]^T.

    Args:
        inputs: [rows, in] each; rounded to the matrices' type.
        matrices: [draft_vocab, in] each.
    """
    arguments = (targets, scales, len(inputs), *inputs, *matrices)
    loss, accepted, best = _HeadLoss.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's
    return HeadLoss(loss, accepted, best)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # torch: the arguments are the function's own
        ctx: Any,  # Any: torch's context, to which attributes are added
        targets: HeadTargets,
        scales: LossScales,
        num_inputs: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs, matrices = tensors[:num_inputs], tensors[num_inputs:]
        narrow = [x.to(w.dtype) for x, w in zip(inputs, matrices, strict=True)]
        wants = ctx.needs_input_grad[3:]
        num_rows, vocab_size = len(targets.labels), len(matrices[0])
        # By the logits, of all rows: sums over rows are exact only in one product.
        gradient = matrices[0].new_empty(num_rows if any(wants) else 0, vocab_size)
        loss = torch.zeros((), dtype=torch.float64)
        accepted, best = torch.zeros(num_rows), torch.zeros(num_rows, dtype=torch.int64)
        for start in range(0, num_rows, _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            part = _chunk(_logits([x[rows] for x in narrow], matrices), targets, scales, rows)
            loss += part.loss
            accepted[rows], best[rows] = part.acceptance, part.best
            if any(wants):
                gradient[rows] = part.gradient
        ctx.grads = _input_gradients(gradient, inputs, matrices, wants)
        ctx.mark_non_differentiable(accepted, best)
        return loss.float(), accepted, best

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # Any: see forward
        factor = upstream[0]
        scaled = (None if grad is None else grad * factor.to(grad.dtype) for grad in ctx.grads)
        return (None, None, None, *scaled)


@dataclass(frozen=True, slots=True)
class _Chunk:
    loss: float
    acceptance: Tensor
    best: Tensor
    gradient: Tensor  # [rows, draft_vocab] of the logits


def _logits(inputs: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    logits = inputs[0] @ matrices[0].T
    for x, weight in zip(inputs[1:], matrices[1:], strict=True):
        logits = torch.addmm(logits, x, weight.T)
    return logits


def _chunk(logits: Tensor, targets: HeadTargets, scales: LossScales, rows: slice) -> _Chunk:
    """Loss of a few rows and its gradient by their logits; `probs` becomes the gradient."""
    highest, best = logits.max(-1, keepdim=True)
    best = best.squeeze(-1)
    # Numbers below the smallest normal one cost hundreds of cycles each.
    logits = torch.maximum(logits, highest - _LOGIT_RANGE)
    probs = torch.softmax(logits, -1, dtype=torch.float32)
    labels, weights = targets.labels[rows], targets.weights[rows]
    top_ids, is_known = targets.top_ids[rows].clamp_min(0), targets.top_ids[rows] >= 0
    target_probs = targets.top_probs[rows] * is_known
    top_probs = probs.gather(1, top_ids)
    overlap = torch.minimum(top_probs, target_probs).sum(-1)
    accepted, towards = _shared(top_probs, target_probs, is_known, wants_slopes=scales.shared > 0.0)
    has_label = (labels >= 0).float()
    label_ids = labels.clamp_min(0).unsqueeze(1)
    label_probs = probs.gather(1, label_ids)
    soft = target_probs / target_probs.sum(-1, keepdim=True).clamp_min(_SMALLEST_PROB)
    has_soft = soft.sum(-1)
    row_losses = (
        -scales.label * has_label * _log(label_probs).squeeze(1)
        - scales.soft * (soft * _log(top_probs)).sum(-1)
        + scales.distance * (2.0 - 2.0 * overlap)
        + scales.shared * (1.0 - accepted)
    )
    # d f(p) / d logit_j = sum_i df / dp_i p_i (1[i = j] - p_j); min(p_i, t_i) has the derivative 1
    # where p_i < t_i, and 0 elsewhere.
    slopes = 2.0 * scales.distance * (top_probs < target_probs) + scales.shared * towards
    pulled = top_probs * slopes
    factor = scales.label * has_label + scales.soft * has_soft + pulled.sum(-1)
    probs.mul_((weights * factor).unsqueeze(1))
    pulled = (pulled + scales.soft * soft) * weights.unsqueeze(1)
    probs.scatter_add_(1, top_ids, -pulled)
    probs.scatter_add_(1, label_ids, -(scales.label * has_label * weights).unsqueeze(1))
    return _Chunk(float((row_losses * weights).sum(dtype=torch.float64)), accepted, best, probs)


def _shared(
    draft: Tensor, target: Tensor, is_known: Tensor, *, wants_slopes: bool
) -> tuple[Tensor, Tensor]:
    """[rows] `shared_acceptance`; [rows, k] its derivative by the draft's probabilities, or 0."""
    with torch.set_grad_enabled(wants_slopes):
        leaf = draft.detach().requires_grad_(wants_slopes)
        accepted = shared_acceptance(leaf * is_known, target)
        if not wants_slopes:
            return accepted, torch.zeros_like(draft)
        (slopes,) = torch.autograd.grad(accepted.sum(), leaf)
    return accepted.detach(), slopes


def _input_gradients(
    of_logits: Tensor,  # [rows, draft_vocab]
    inputs: Sequence[Tensor],
    matrices: Sequence[Tensor],
    wants: Sequence[bool],
) -> list[Tensor | None]:
    grads: list[Tensor | None] = [None] * len(wants)
    for index, (x, weight) in enumerate(zip(inputs, matrices, strict=True)):
        if wants[index]:
            grads[index] = (of_logits @ weight).to(x.dtype)
        if wants[len(inputs) + index]:
            grads[len(inputs) + index] = of_logits.T @ x.to(weight.dtype)
    return grads


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(_SMALLEST_PROB).log()
