"""How parameters move: Muon for the matrices between hidden states, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.training.settings import FitSettings

_BETAS = (0.9, 0.95)
_MOMENTUM = 0.95
_KEPT_STATE = ("exp_avg", "exp_avg_sq", "momentum_buffer")
_MATRIX_RANK = 2
_MARKOV = "markov_head."
_ADAM_SHARE = 0.125  # of Muon's learning rate: its updates bear that much more
_MARKOV_SHARE = 0.5  # biases are products of two such numbers, and each token is met now and then


class Optimiser:
    """Moves parameters by their gradients.

    At one learning rate their updates are equally long; beside Muon, AdamW takes an eighth of it,
    for a Markov head half.

    Source: Jordan et al. 2024 (Muon); Liu et al. 2025 (arXiv:2502.16982) on its size.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: FitSettings) -> None:
        self._parameters = parameters
        by_muon = {
            name: parameter
            for name, parameter in parameters.items()
            if settings.optimiser == "muon" and _is_between_states(name, parameter)
        }
        others = {name: p for name, p in parameters.items() if name not in by_muon}
        markov = [p for name, p in others.items() if name.startswith(_MARKOV)]
        plain = [p for name, p in others.items() if not name.startswith(_MARKOV)]
        decay = settings.weight_decay
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        for some, share in ((plain, _ADAM_SHARE), (markov, _MARKOV_SHARE)):
            if some:
                adamw = torch.optim.AdamW(some, betas=_BETAS, weight_decay=decay, fused=True)
                self._parts.append((adamw, share if by_muon else 1.0))
        if by_muon:
            muon = torch.optim.Muon(
                by_muon.values(),
                momentum=_MOMENTUM,
                weight_decay=decay,
                adjust_lr_fn="match_rms_adamw",
            )
            self._parts.append((muon, 1.0))

    def step(self, learning_rate: float) -> None:
        """Move once, then forget the gradients."""
        for part, share in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate * share
            part.step()
            part.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """What it remembers of earlier steps, by name."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            for part, _ in self._parts:
                known = part.state.get(parameter, {})
                tensors |= {f"{key}/{name}": known[key] for key in _KEPT_STATE if key in known}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Go on from a `state` that was taken after `num_steps` steps."""
        for part, _ in self._parts:
            owned = {id(p) for group in part.param_groups for p in group["params"]}
            for name, parameter in self._parameters.items():
                if id(parameter) not in owned:
                    continue
                known = {
                    key: tensors[f"{key}/{name}"].clone()
                    for key in _KEPT_STATE
                    if f"{key}/{name}" in tensors
                }
                if known:
                    part.state[parameter] = {"step": torch.tensor(float(num_steps)), **known}


def _is_between_states(name: str, parameter: Tensor) -> bool:
    return parameter.dim() == _MATRIX_RANK and name.startswith(("layers.", "fc."))
