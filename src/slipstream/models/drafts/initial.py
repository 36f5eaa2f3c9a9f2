"""Parameters to start a training with."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.load import net_class_of

_STD = 0.02
_NORMS = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
_ZERO = ("successor_codebook", "kernel_projection.weight", "markov_w2.weight", ".bias")


def initial_parameters(hparams: DraftHparams, generator: torch.Generator) -> dict[str, Tensor]:
    """Random float32 parameters whose additions to DFlash do nothing yet.

    Norms are 1, matrices N(0, 0.02²); convolutions pass their input through, and the selector's
    and the Markov head's scores are 0, so DFlash 2 and DSpark start as the DFlash inside them.
    """
    parameters: dict[str, Tensor] = {}
    for name, shape in net_class_of(hparams).parameter_shapes(hparams).items():
        if name.endswith("base_kernel"):
            kernel = torch.zeros(shape)
            kernel[:, 0] = 1.0
            parameters[name] = kernel
        elif name.endswith(_NORMS):
            parameters[name] = torch.ones(shape)
        elif name.endswith(_ZERO):
            parameters[name] = torch.zeros(shape)
        else:
            parameters[name] = torch.randn(shape, generator=generator) * _STD
    return parameters
