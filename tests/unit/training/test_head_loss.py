from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.training.head_loss import HeadTargets, LossScales, head_loss

ROWS, WIDTH, VOCAB, TOP = 600, 12, 40, 6  # more rows than are computed at once

SCALES = {
    "label": LossScales(label=1.0),
    "soft": LossScales(soft=1.0),
    "distance": LossScales(distance=1.0),
    "shared": LossScales(shared=1.0),
    "all": LossScales(label=0.3, soft=0.2, distance=0.9, shared=0.7),
}


def targets_of(generator: torch.Generator) -> HeadTargets:
    probs = torch.softmax(2.0 * torch.randn(ROWS, VOCAB, generator=generator), -1)
    top = probs.topk(TOP)
    ids = top.indices.clone()
    ids[::3, 1] = -1  # the draft lacks some of the target's tokens
    labels = torch.randint(0, VOCAB, (ROWS,), generator=generator)
    labels[::7] = -1
    weights = torch.rand(ROWS, generator=generator)
    return HeadTargets(labels, ids, top.values, weights)


def shared_acceptance(draft: Tensor, target: Tensor, is_top: Tensor) -> Tensor:
    """The definition; all tokens outside the likeliest are one."""
    rest = [torch.where(is_top, 0.0, x).sum(-1) + 1.0 - x.sum(-1) for x in (draft, target)]
    draft = torch.cat((torch.where(is_top, draft, 0.0), rest[0].unsqueeze(-1)), -1)
    target = torch.cat((torch.where(is_top, target, 0.0), rest[1].unsqueeze(-1)), -1)
    total = torch.zeros(len(draft))
    for token in range(draft.shape[1] - 1):
        p, q = target[:, token : token + 1], draft[:, token : token + 1]
        ratios = torch.maximum(target / p.clamp_min(1e-20), draft / q.clamp_min(1e-20))
        total = total + torch.where(is_top[:, token], 1.0 / ratios.sum(-1), 0.0)
    return total


def plain_loss(logits: Tensor, targets: HeadTargets, scales: LossScales) -> Tensor:
    """The definition, over dense probabilities."""
    probs = torch.softmax(logits, -1)
    has = targets.top_ids >= 0
    target = torch.zeros(ROWS, VOCAB)
    target.scatter_add_(1, targets.top_ids.clamp_min(0), targets.top_probs * has)
    is_top = target > 0
    soft = target / target.sum(-1, keepdim=True)
    label = functional.cross_entropy(logits, targets.labels, reduction="none", ignore_index=-1)
    overlap = torch.where(is_top, torch.minimum(probs, target), 0.0).sum(-1)
    rows = (
        scales.label * label
        - scales.soft * (soft * torch.log(probs)).sum(-1)
        + scales.distance * (2.0 - 2.0 * overlap)
        + scales.shared * (1.0 - shared_acceptance(probs, target, is_top))
    )
    return (rows * targets.weights).sum()


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES.keys())
def test_loss_and_gradients_are_those_of_the_definition(scales: LossScales) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(ROWS, width, generator=generator) for width in (WIDTH, 5)]
    matrices = [torch.randn(VOCAB, width, generator=generator) for width in (WIDTH, 5)]
    tensors = [tensor.requires_grad_() for tensor in (*inputs, *matrices)]
    targets = targets_of(generator)

    fused = head_loss(inputs, matrices, targets, scales).loss
    plain = plain_loss(inputs[0] @ matrices[0].T + inputs[1] @ matrices[1].T, targets, scales)

    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-3)
    for of_fused, of_plain in zip(
        torch.autograd.grad(3.0 * fused, tensors),
        torch.autograd.grad(3.0 * plain, tensors),
        strict=True,
    ):
        torch.testing.assert_close(of_fused, of_plain, rtol=1e-3, atol=1e-3)


def test_a_frozen_matrix_gets_no_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, WIDTH, generator=generator, requires_grad=True)
    matrix = torch.randn(VOCAB, WIDTH, generator=generator)

    loss = head_loss([hidden], [matrix], targets_of(generator), SCALES["all"]).loss
    (gradient,) = torch.autograd.grad(loss, [hidden])

    assert bool(gradient.abs().sum() > 0)
    assert matrix.grad is None


def test_a_draft_that_agrees_with_the_target_is_accepted() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -30.0]])
    probs = torch.softmax(logits, -1)
    targets = HeadTargets(
        torch.tensor([2]), torch.tensor([[2, 1, 0]]), probs[:, [2, 1, 0]], torch.ones(1)
    )

    result = head_loss([logits], [torch.eye(4)], targets, LossScales(distance=1.0))

    torch.testing.assert_close(result.acceptance, torch.ones(1))
    assert result.best.tolist() == [2]
    assert float(result.loss) == pytest.approx(0.0, abs=1e-6)
