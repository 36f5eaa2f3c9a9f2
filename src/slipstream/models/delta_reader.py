"""A Gated DeltaNet layer from a checkpoint, in the layouts that public files have."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.models.hparams import DeltaParams, Hparams
from slipstream.models.layers.delta import DeltaNet, DeltaWeights
from slipstream.models.layers.delta_rule import DeltaRule, TorchDeltaRule
from slipstream.models.layers.native_delta_rule import NativeDeltaRule, fits
from slipstream.models.weight_reader import WeightReader


def read_delta_net(reader: WeightReader, hparams: Hparams, index: int, prefix: str) -> DeltaNet:
    """The recurrent layer `index`; all that reads the same input becomes one matrix."""
    delta = hparams.layers[index].delta
    assert delta is not None
    hidden, heads = hparams.hidden_size, delta.value_heads
    num_channels, value_size = delta.num_channels, delta.value_size
    if delta.is_interleaved and not reader.has(f"{prefix}.in_proj_qkv.weight"):
        sizes = {"in_proj_qkvz": num_channels + value_size}
    else:
        sizes = {"in_proj_qkv": num_channels, "in_proj_z": value_size}
    if delta.is_interleaved:
        sizes["in_proj_ba"] = 2 * heads
    else:
        sizes |= {"in_proj_b": heads, "in_proj_a": heads}
    kernel = reader.tensor(f"{prefix}.conv1d.weight", num_channels, 1, delta.kernel_len)
    # This norm's weight is never stored zero-centred, whatever the others are.
    norm = reader.norm(f"{prefix}.norm", delta.value_dim, hparams.norm_eps)
    return DeltaNet(
        state_layer=sum(layer.delta is not None for layer in hparams.layers[:index]),
        params=delta,
        rule=_rule(reader, delta),
        weights=DeltaWeights(
            inputs=reader.linear(
                {f"{prefix}.{name}": size for name, size in sizes.items()}, hidden
            ),
            order=_order(delta, is_split="in_proj_z" in sizes) if delta.is_interleaved else None,
            kernel=kernel.squeeze(1),
            log_decay=reader.tensor(f"{prefix}.A_log", heads),
            decay_bias=reader.tensor(f"{prefix}.dt_bias", heads),
            norm=norm,
            output=reader.linear({f"{prefix}.out_proj": hidden}, value_size),
        ),
    )


def _rule(reader: WeightReader, delta: DeltaParams) -> DeltaRule:
    if reader.kernels is not None and fits(delta.key_dim):
        return NativeDeltaRule(reader.kernels)
    return TorchDeltaRule()


def _order(delta: DeltaParams, *, is_split: bool) -> Tensor:
    """Where queries, keys, values, gates, rates and decays are among rows stored by key head.

    Args:
        is_split: All but rates and decays are in order, as GGUF files have them.
    """
    heads, repeats = delta.key_heads, delta.value_heads // delta.key_heads
    values = repeats * delta.value_dim
    stored = torch.arange(delta.num_channels + delta.value_size).view(heads, -1)
    parts = stored.split_with_sizes([delta.key_dim, delta.key_dim, values, values], 1)
    rest = stored.numel() + torch.arange(2 * delta.value_heads).view(heads, 2, repeats)
    front = (stored,) if is_split else parts
    return torch.cat([part.flatten() for part in (*front, rest[:, 0], rest[:, 1])])
