from __future__ import annotations

import pytest
import torch

from slipstream.models.drafts.parts import LayerKv, attend
from slipstream.training.attention import attend_bfloat16


@pytest.mark.parametrize("blocks", [5, 110])  # one chunk, and more
def test_rounded_attention_is_near_the_exact_one_with_its_gradients(blocks: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    batch, rows, length, kv_heads, size = 2, 3, 41, 2, 8
    queries = draw(batch, blocks, rows, 3 * kv_heads, size)
    context = LayerKv(*(draw(batch, length, kv_heads, size) for _ in range(2)))
    own = LayerKv(*(draw(batch, blocks, rows, kv_heads, size) for _ in range(2)))
    visible = torch.rand(batch, blocks, rows, length, generator=generator) < 0.5
    # As of blocks in the order of their starts, of which the first see nothing.
    reach = torch.linspace(-length, length, blocks).long().view(1, blocks, 1, 1)
    visible &= torch.arange(length) < reach
    own_visible = torch.ones(rows, rows, dtype=torch.bool).tril()
    arguments = (queries, context, visible, own, own_visible, size**-0.5)
    tensors = (queries, context.keys, context.values, own.keys, own.values)
    upstream = torch.randn(batch, blocks, rows, 6 * size, generator=generator)

    exact, rounded = attend(*arguments), attend_bfloat16(*arguments)

    torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.03)
    for of_exact, of_rounded in zip(
        torch.autograd.grad(exact, tensors, upstream),
        torch.autograd.grad(rounded, tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(of_rounded, of_exact, rtol=0.1, atol=0.1)
