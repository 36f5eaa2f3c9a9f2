"""Gated activations whose elements do not depend on their place in the tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.row_proof import is_pointwise, prove_pointwise
from slipstream.models.hparams import Activation

GatedActivation = Callable[[Tensor], Tensor]
"""[rows, 2 * size], gates first -> [rows, size] act(gate) * up, in the same dtype."""


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
"""Torch's own functions, for where an element's place may change its last bit."""


def gated_activation(kind: Activation, dtype: torch.dtype) -> GatedActivation:
    """The fastest exact form of act(gate) * up.

    Torch's own SiLU and GELU treat the last elements of a tensor, or of a thread's share of it, by
    other code that rounds differently. For bfloat16 all 65536 inputs are tried: where none shows a
    difference, torch's function is exact after all. Otherwise it is composed of operations that
    are (exp and tanh are checked, the others are correctly rounded).

    Raises:
        NumericsError: If even exp or tanh depends on an element's place.
    """
    if kind == "silu" and dtype == torch.bfloat16 and is_pointwise(functional.silu, _every_bf16()):
        return _fused_silu
    values = torch.linspace(-30.0, 30.0, 4096)
    if kind == "silu":
        prove_pointwise("exp", torch.exp, values)
        return _silu
    prove_pointwise("tanh", torch.tanh, values)
    return _gelu_tanh


def sigmoid(x: Tensor) -> Tensor:
    """Of operations whose elements do not depend on their place; float32."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), likewise; float32."""
    return torch.div(x, torch.neg(x).exp_().add_(1.0))


def _every_bf16() -> Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def _fused_silu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def _silu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    denominator = torch.neg(gate).exp_().add_(1.0)
    return torch.div(gate, denominator, out=denominator).mul_(up).to(gate_up.dtype)


def _gelu_tanh(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    inner = gate.square().mul_(gate).mul_(0.044715).add_(gate).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(gate).mul_(0.5).mul_(up).to(gate_up.dtype)
