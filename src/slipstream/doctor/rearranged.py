"""A draft net's tensors as if an exporter had put them in other places."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.models.drafts.load import AnyDraftNet

_FIRST_INPUTS = tuple(f"layers.0.self_attn.{part}_proj.weight" for part in "qkv")


def exchanged(parameters: Mapping[str, Tensor], first: str, second: str) -> dict[str, Tensor]:
    """What has `first` in its name gets the tensor of what has `second` there, and vice versa."""
    pairs = {name: name.replace(first, second) for name in parameters if first in name}
    return {name: parameters[other] for name, other in pairs.items()} | {
        other: parameters[name] for name, other in pairs.items()
    }


def other_half_first(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the first layer's attention makes of two inputs side by side, in the other order."""
    return {name: torch.cat(parameters[name].chunk(2, -1)[::-1], -1) for name in _FIRST_INPUTS}


def neighbours_as_halves(net: AnyDraftNet) -> dict[str, Tensor]:
    """Queries and keys as if they were stored with the two halves of each head taking turns."""
    body = net.hparams.body
    found: dict[str, Tensor] = {}
    for name, tensor in net.parameters.items():
        is_projection = "q_proj" in name or "k_proj" in name
        if is_projection or name.endswith(("q_norm.weight", "k_norm.weight")):
            pairs = tensor.view(-1, body.head_dim // 2, 2, *tensor.shape[1:])
            found[name] = pairs.transpose(1, 2).reshape(tensor.shape)
    return found
