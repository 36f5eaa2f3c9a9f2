"""What native products and `native-amx` attention compute, in plain torch: oracles of tests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slipstream.weights.gguf_blocks import QuantizedTensor

_SMALLEST = 2.0**-100
_LOG2_E = torch.tensor(1.44269504)
_LOWEST = -120.0


def matrix_twin(x: Tensor, weight: Tensor) -> Tensor:
    """Products of bfloat16 tensors.

    Args:
        x: [rows, num_in] bfloat16; weight: [num_out, num_in] bfloat16.
    Returns: [rows, num_out] float32. Products of two bfloat16 are exact in float32, so a fused
    multiplication and addition is the same as one after the other.
    """
    total = torch.zeros(len(x), len(weight))
    for link in _links(x, weight).unbind(-1):
        total += link
    return total


def block_twin(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """Products with stored blocks.

    Args:
        x: [rows, num_in] bfloat16; weight: blocks of 32 inputs, as stored.
    Returns: [rows, num_out] float32; a scale times a sum is added with one rounding.
    """
    codes, scales, minima = _parts(weight)
    links = _links(x, codes)
    row_sums = _links(x, torch.ones(1, x.shape[1]))
    total = torch.zeros(len(x), len(codes))
    for step in range(links.shape[-1]):
        total = _fused(links[..., step], scales[:, step], total)
        if minima is not None:
            total = _fused(row_sums[..., step], minima[:, step], total)
    return total


def int8_twin(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """Products with stored blocks whose inputs enter in 8 bit.

    Args:
        x: [rows, num_in] bfloat16, finite; weight: blocks of 32 inputs, as stored.
    Returns: [rows, num_out] float32. Sums of codes' products are whole numbers.
    """
    codes, scales, minima = _parts(weight)
    x_codes, x_scales = quantise(x)
    products = torch.einsum(
        "msi,nsi->mns", x_codes.double(), codes.view(len(codes), -1, 32).double()
    ).float()
    x_sums = x_scales * x_codes.sum(-1)
    total = torch.zeros(len(x), len(codes))
    for step in range(products.shape[-1]):
        scale = scales[:, step] * x_scales[:, None, step]
        total = _fused(scale, products[..., step], total)
        if minima is not None:
            total = _fused(minima[:, step], x_sums[:, None, step], total)
    return total


def section_twin(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attention of a head's rows over one section, all of which they see, in the order of AMX.

    Args:
        query: [rows, dim] float32; keys, values: [positions, dim] bfloat16, at most 128 of them.
    Returns: [rows, dim] float32.
    """
    scaled = query * (torch.tensor(scale) * _LOG2_E)
    high = scaled.bfloat16()
    parts = (_links(high, keys), _links((scaled - high.float()).bfloat16(), keys))
    scores = torch.zeros(len(query), len(keys))
    for step in range(parts[0].shape[-1]):
        for part in parts:
            scores += part[..., step]
    weights = _weights_of(scores - scores.amax(1, keepdim=True)).bfloat16()
    total, mixed = torch.zeros(len(query)), torch.zeros_like(query)
    for i in range(0, len(keys) - 1, 2):  # of two that are added at once, the second comes first
        total += weights[:, i + 1].float()
        total += weights[:, i].float()
    if len(keys) % 2:
        total += weights[:, -1].float()
    for link in _links(weights, values.T).unbind(-1):
        mixed += link
    return mixed * (1 / total)[:, None]


def _weights_of(x: Tensor) -> Tensor:
    """2^x for x <= 0, as `weight_of` in `csrc/attention_softmax.hpp`."""
    fraction = x - x.floor()
    power = torch.full_like(x, 7.802446e-2)
    for factor in (2.2606725e-1, 6.9583351e-1, 9.9992522e-1):
        power = _fused(power, fraction, torch.full_like(x, factor))
    return torch.where(x < _LOWEST, 0.0, torch.ldexp(power, x.floor()))


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bit: codes [rows, steps, 32] and scales [rows, steps], both float32.

    Args:
        x: [rows, num_in] bfloat16, finite, num_in a multiple of 32.
    """
    blocks = x.float().view(len(x), -1, 32)
    largest = blocks.abs().amax(-1)
    is_zero = largest < _SMALLEST
    # Not 127 / largest: torch would multiply its reciprocal, with two roundings.
    inverse = torch.where(is_zero, 0.0, torch.full_like(largest, 127) / largest)
    codes = torch.round(blocks * inverse[..., None])  # to nearest even
    return codes, torch.where(is_zero, 0.0, largest / 127)


def _links(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of products by 32 inputs, [rows, num_out, steps]."""
    num_steps = -(-x.shape[1] // 32)
    padding = (0, num_steps * 32 - x.shape[1])
    rows = torch.nn.functional.pad(x.float(), padding).view(len(x), 1, num_steps, 16, 2)
    columns = torch.nn.functional.pad(weight.float(), padding).view(1, -1, num_steps, 16, 2)
    links = torch.zeros(len(x), len(weight), num_steps, 2)
    for pair in range(16):
        links += rows[:, :, :, pair] * columns[:, :, :, pair]
    return links[..., 0] + links[..., 1]


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c, rounded to float32 once (the product of two float32 is exact in float64, and a sum
    that float64 rounds to a tie of float32 is too rare to be met)."""
    return (a.double() * b.double() + c.double()).float()


def _parts(weight: QuantizedTensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes [num_out, num_in], scales [num_out, steps] and minima, likewise, or None."""
    num_out, num_in = weight.shape
    has_minima = weight.block.name == "Q4_1"
    blocks = np.ascontiguousarray(weight.blocks)
    header = 4 if has_minima else 2
    halves = blocks[:, :header].copy().view(np.float16).astype(np.float32)
    scales = torch.from_numpy(halves.reshape(num_out, -1, header // 2))
    data = blocks[:, header:]
    if weight.block.name == "Q8_0":
        codes = data.view(np.int8).astype(np.float32)
    else:
        offset = 0 if has_minima else 8
        codes = np.concatenate((data & 15, data >> 4), 1).astype(np.float32) - offset
    whole = torch.from_numpy(codes.reshape(num_out, num_in))
    return whole, scales[..., 0], scales[..., 1] if has_minima else None
