from __future__ import annotations

import pytest
import torch

from slipstream.training.shared_noise import shared_acceptance


def some_laws(count: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    logits = 2.0 * torch.randn(count, 7, generator=generator)
    other = logits + spread * torch.randn(count, 7, generator=generator)
    return torch.softmax(logits, -1), torch.softmax(other, -1)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_it_is_how_often_the_same_noise_draws_the_same_token(spread: float) -> None:
    target, draft = some_laws(4, spread)
    noise = torch.empty(200_000, 1, 7).exponential_(generator=torch.Generator().manual_seed(5))
    drawn = [(noise / law).argmin(-1) for law in (target, draft)]
    often = (drawn[0] == drawn[1]).float().mean(0)
    torch.testing.assert_close(shared_acceptance(draft, target), often, rtol=0.0, atol=0.005)


def test_it_lies_between_its_bounds() -> None:
    target, draft = some_laws(500, 1.5)
    distance = 1.0 - torch.minimum(target, draft).sum(-1)
    accepted = shared_acceptance(draft, target)
    assert (accepted <= 1.0 - distance + 1e-6).all()
    assert (accepted >= (1.0 - distance) / (1.0 + distance) - 1e-6).all()


def test_what_is_missing_never_agrees() -> None:
    target, draft = some_laws(100, 0.0)
    assert shared_acceptance(draft, target).numpy() == pytest.approx(1.0)
    seen = shared_acceptance(draft[:, :5], target[:, :5])
    torch.testing.assert_close(seen, target[:, :5].sum(-1))
