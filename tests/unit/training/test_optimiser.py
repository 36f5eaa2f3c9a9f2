"""Muon moves matrices between states, AdamW the rest; both go on where they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.training.optimiser import Optimiser
from slipstream.training.settings import FitSettings

RATE = 0.01


def parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "fc.weight": (8, 24),
        "layers.0.mlp.up_proj.weight": (16, 8),
        "lm_head.weight": (32, 8),
        "markov_head.markov_w2.weight": (32, 4),
        "norm.weight": (8,),
    }
    return {
        name: torch.randn(shape, generator=generator).requires_grad_()
        for name, shape in shapes.items()
    }


def fit_settings(optimiser: str) -> FitSettings:
    return FitSettings.model_validate(
        {"num_steps": 4, "learning_rate": RATE, "optimiser": optimiser}
    )


def take_steps(optimiser: Optimiser, of: dict[str, Tensor], steps: range) -> None:
    for step in steps:
        for name, parameter in of.items():
            generator = torch.Generator().manual_seed(100 * step + len(name))
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step(RATE)


def test_a_matrix_between_states_turns_in_all_directions_alike() -> None:
    moved = parameters()
    before = {name: p.detach().clone() for name, p in moved.items()}
    take_steps(Optimiser(moved, fit_settings("muon")), moved, range(1))
    for name in ("fc.weight", "layers.0.mlp.up_proj.weight"):
        values = torch.linalg.svdvals(moved[name].detach() - before[name])
        assert values.max() < 2.0 * values.min()
    assert (moved["lm_head.weight"] - before["lm_head.weight"]).abs().max() <= RATE / 8 * 1.01


def test_a_markov_head_moves_further_than_other_tables() -> None:
    moved = parameters()
    before = {name: p.detach().clone() for name, p in moved.items()}
    take_steps(Optimiser(moved, fit_settings("muon")), moved, range(1))
    name = "markov_head.markov_w2.weight"
    assert (moved[name] - before[name]).abs().max() > RATE / 4


def test_without_muon_every_number_moves_by_the_learning_rate() -> None:
    moved = parameters()
    before = {name: p.detach().clone() for name, p in moved.items()}
    take_steps(Optimiser(moved, fit_settings("adamw")), moved, range(1))
    for name, parameter in moved.items():
        torch.testing.assert_close(
            (parameter - before[name]).abs(), torch.full(parameter.shape, RATE), rtol=0.01, atol=0.0
        )


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_a_restored_optimiser_goes_on_bit_for_bit(kind: str) -> None:
    whole = parameters()
    take_steps(Optimiser(whole, fit_settings(kind)), whole, range(4))

    stopped = parameters()
    first = Optimiser(stopped, fit_settings(kind))
    take_steps(first, stopped, range(2))
    saved = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Optimiser(stopped, fit_settings(kind))
    second.restore(saved, 2)
    take_steps(second, stopped, range(2, 4))

    for name, parameter in whole.items():
        assert torch.equal(stopped[name], parameter)


def test_gradients_are_forgotten_after_a_step() -> None:
    moved = parameters()
    take_steps(Optimiser(moved, fit_settings("muon")), moved, range(1))
    assert all(parameter.grad is None for parameter in moved.values())
